"""Linear attention, which keeps a matrix of all keys and values for each head.

The gated delta rule (Yang et al., 2024) of Qwen3-Next, Qwen3.5 and OLMo Hybrid, and that of Kimi Linear (2025): a layer
keeps the last inputs of a short convolution over queries, keys and values besides, and queries and keys have length 1.
Lightning attention of MiniMax-01 (2025) has neither; each head decays at a rate of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch

from qpdsl.executor.engine.model.mixers.mixer import Mixer, ProjectedMixer
from qpdsl.executor.kernels.data.states import StateStep
from qpdsl.executor.kernels.plain.functions import sigmoid
from qpdsl.executor.kernels.recurrences import GatedDelta, MatrixState
from qpdsl.executor.requests.errors import UnsupportedModel


class Projected(NamedTuple):
    """What the projections of a layer make of T rows.

    joined: queries and keys [Hk, dk] and then values [Hv, dv], each row as one vector
    gate:   [T, Hv · dv]
    write:  [T, Hv], before the sigmoid
    inputs: [T, Hv] or [T, Hv · dk], of the decays
    """

    joined: torch.Tensor
    gate: torch.Tensor
    write: torch.Tensor
    inputs: torch.Tensor


class DeltaRule(ProjectedMixer):
    """What these modules have in common."""

    def __init__(
        self,
        module: Any,
        layer: int,
        heads: tuple[int, int],
        dims: tuple[int, int],
        decay: tuple[torch.Tensor, torch.Tensor],
        norm: Any,
        dtype: torch.dtype,
        **rules: Any,
    ) -> None:
        """`heads` and `dims`: those of keys and of values; `decay`, `rules`: see `GatedDelta`."""
        if module.activation not in ("silu", "swish"):
            raise UnsupportedModel(f"its convolution is followed by {module.activation}")
        conv, epsilon = module.conv1d, norm.variance_epsilon
        self.heads, self.dims = heads, dims
        self._rule = GatedDelta(heads, dims, conv.weight, conv.bias, decay, norm.weight, epsilon, dtype, **rules)
        super().__init__(module, layer, self._rule.parts)

    def rule(self, outputs: int) -> tuple[GatedDelta, torch.Tensor] | None:
        return self._rule, torch.cat(self.projected(torch.arange(outputs)[None]), dim=1)[0]

    def projected(self, joined: torch.Tensor) -> Projected:
        """The parts of what the layer's projections make of T rows, one after the other."""
        (key_heads, value_heads), (key_dim, value_dim) = self.heads, self.dims
        values = value_heads * value_dim
        wide = 2 * key_heads * key_dim + values
        rest = joined.shape[1] - wide - values - value_heads
        return Projected(*torch.split(joined, [wide, values, value_heads, rest], dim=1))

    def between(self, joined: torch.Tensor, step: StateStep) -> torch.Tensor:
        return self._rule(*self.projected(joined), self.layer, step)


class ScalarDelta(DeltaRule):
    """One decay for each value head."""

    def __init__(self, module: Any, layer: int, dtype: torch.dtype, norm: Any, *, largest: float = 1.0) -> None:
        heads, dims = (module.num_k_heads, module.num_v_heads), (module.head_k_dim, module.head_v_dim)
        decay = module.dt_bias, -module.A_log.detach().float().exp()
        super().__init__(module, layer, heads, dims, decay, norm, dtype, largest=largest, rounds_normed=True)


class Qwen35Delta(ScalarDelta):
    """It projects each part by itself."""

    MODULES: ClassVar[tuple[str, ...]] = ("Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet")
    FIRST: ClassVar[tuple[str, ...]] = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")

    def __init__(self, module: Any, layer: int, dtype: torch.dtype) -> None:
        super().__init__(module, layer, dtype, module.norm)


class Qwen3NextDelta(Qwen35Delta):
    """Its projections are joined by key head."""

    MODULES = ("Qwen3NextGatedDeltaNet",)
    FIRST = ("in_proj_qkvz", "in_proj_ba")

    def projected(self, joined: torch.Tensor) -> Projected:
        (key_heads, value_heads), (key_dim, value_dim) = self.heads, self.dims
        shared = value_heads // key_heads
        sizes = [key_dim, key_dim, shared * value_dim, shared * value_dim]
        wide, narrow = joined.tensor_split((key_heads * sum(sizes),), dim=1)
        *parts, gate = torch.split(torch.unflatten(wide, 1, (key_heads, -1)), sizes, dim=-1)
        write, inputs = torch.split(torch.unflatten(narrow, 1, (key_heads, -1)), shared, dim=-1)
        joined = torch.cat([part.flatten(1) for part in parts], dim=1)
        return Projected(joined, gate.flatten(1), write.flatten(1), inputs.flatten(1))


class OlmoHybridDelta(ScalarDelta):
    """A state's eigenvalues may be negative."""

    MODULES = ("OlmoHybridGatedDeltaNet",)
    FIRST, LAST = ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "a_proj"), "o_proj"

    def __init__(self, module: Any, layer: int, dtype: torch.dtype) -> None:
        super().__init__(module, layer, dtype, module.o_norm, largest=2.0 if module.allow_neg_eigval else 1.0)


class KimiDelta(DeltaRule):
    """Each row of a state decays by itself."""

    MODULES = ("KimiLinearDeltaAttention",)
    FIRST = ("q_proj", "k_proj", "v_proj", "g_a_proj", "b_proj", "forget_gate.f_a_proj")
    LAST = "o_proj"

    def __init__(self, module: Any, layer: int, dtype: torch.dtype) -> None:
        heads, dim, forget, norm = module.num_heads, module.head_dim, module.forget_gate, module.o_norm
        rate = -forget.A_log.detach().float().exp().view(heads, 1).expand(heads, dim)
        decay = forget.dt_bias, rate
        super().__init__(module, layer, (heads, heads), (dim, dim), decay, norm, dtype, activation="sigmoid")

    def projected(self, joined: torch.Tensor) -> Projected:
        heads, dim = self.heads[0], self.dims[0]
        module, narrow = self.module, self.module.g_a_proj.out_features
        wide, gate, write, inputs = joined.tensor_split(
            (3 * heads * dim, 3 * heads * dim + narrow, 3 * heads * dim + narrow + heads), dim=1
        )
        return Projected(wide, module.g_b_proj(gate), write, module.forget_gate.f_b_proj(inputs))

    def rule(self, outputs: int) -> None:
        """It has more projections in between."""


class BailingDelta(DeltaRule):
    """That of Kimi Linear with other projections; logarithms of decays may have a bound."""

    MODULES = ("BailingHybridDeltaAttention",)
    FIRST, LAST = ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "forget_gate.f_proj"), "o_proj"

    def __init__(self, module: Any, layer: int, dtype: torch.dtype) -> None:
        heads, dim, forget, norm = module.num_heads, module.head_dim, module.forget_gate, module.o_norm
        bound = forget.lower_bound if forget.safe_gate else None
        rate = forget.A_log.detach().float().exp().view(heads, 1).expand(heads, dim)
        decay, sizes = (forget.dt_bias, -rate if bound is None else rate), ((heads, heads), (dim, dim))
        super().__init__(module, layer, *sizes, decay, norm, dtype, activation="sigmoid", bound=bound, rounds=True)


class Lightning(Mixer):
    """Queries and keys are as they were projected. The state is float32, where that of transformers is rounded."""

    MODULES = ("MiniMaxLightningAttention",)

    def __init__(self, module: Any, layer: int, dtype: torch.dtype) -> None:
        heads, dim = module.num_attention_heads, module.head_dim
        self._state = MatrixState((heads, heads), (dim, dim))
        self._decay = torch.exp(-module.slope_rate.detach().float()).view(1, heads)
        super().__init__(module, layer, (self._state.part,))

    def mix(self, hidden: torch.Tensor, step: StateStep) -> torch.Tensor:
        module = self.module
        joined = module.act_fn(module.qkv_proj(hidden)).float().unflatten(1, (module.num_attention_heads, -1))
        query, key, value = joined.split(module.head_dim, dim=-1)
        decay = self._decay.expand(len(hidden), -1)
        out = self._state(query, key, value, decay, self.layer, step).to(hidden.dtype)
        gate = sigmoid(module.output_gate(hidden).float()).to(hidden.dtype)
        mixed: torch.Tensor = module.out_proj(gate * module.norm(out.flatten(1)))
        return mixed

    def output(self, mixed: torch.Tensor) -> tuple[torch.Tensor, None]:
        return mixed, None
