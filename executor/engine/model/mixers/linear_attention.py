"""Linear attention, which keeps a matrix of all keys and values for each head.

The gated delta rule (Yang et al., 2024) of Qwen3-Next, Qwen3.5 and OLMo Hybrid, and that of Kimi Linear (2025): a layer
keeps the last inputs of a short convolution over queries, keys and values besides, and queries and keys have length 1.
Lightning attention of MiniMax-01 (2025) has neither; each head decays at a rate of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch

from qpdsl.executor.engine.model.mixers.mixer import Mixer
from qpdsl.executor.kernels.data.states import StateStep
from qpdsl.executor.kernels.plain.functions import sigmoid
from qpdsl.executor.kernels.recurrences import DeltaGates, GatedNorm, MatrixState, ShortConvolution
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


class DeltaRule(Mixer):
    """What these modules have in common."""

    def __init__(
        self,
        module: Any,
        layer: int,
        heads: tuple[int, int],
        dims: tuple[int, int],
        decay: tuple[torch.Tensor, torch.Tensor],
        norm: GatedNorm,
        *,
        largest: float = 1.0,
        bound: float | None = None,
        rounds: bool = False,
    ) -> None:
        """`heads` and `dims`: those of keys and of values; `decay`: bias and rate [Hv] or [Hv, dk]; `largest`: of β.

        `bound`, `rounds`: see `DeltaGates`.
        """
        if module.activation not in ("silu", "swish"):
            raise UnsupportedModel(f"its convolution is followed by {module.activation}")
        conv, dtype = module.conv1d, norm.dtype
        self._heads, self._dims, self._norm = heads, dims, norm
        self._by_row = decay[1].numel() > heads[1]
        self._convolved = ShortConvolution(conv.weight, conv.bias, dtype, activated=True)
        self._gates = DeltaGates(heads[0], dims[0], heads[1], *decay, dtype, largest, bound, rounds=rounds)
        self._state = MatrixState(heads, dims, dtype, corrects=True, by_row=self._by_row)
        super().__init__(module, layer, (self._convolved.part, self._state.part))

    @abstractmethod
    def projected(self, hidden: torch.Tensor) -> Projected: ...

    @abstractmethod
    def finished(self, normed: torch.Tensor) -> torch.Tensor:
        """The last projection, of `normed` [T, Hv · dv]."""

    def mix(self, hidden: torch.Tensor, step: StateStep) -> torch.Tensor:
        joined, gate, write, inputs = self.projected(hidden)
        joined = self._convolved(joined, self.layer, step)
        pairs, decay, beta = self._gates(joined, write, inputs)
        query, key = pairs.unbind(1)
        value = joined[:, 2 * self._heads[0] * self._dims[0] :].view(-1, self._heads[1], self._dims[1])
        if self._by_row:
            decay = decay.view(-1, self._heads[1], self._dims[0])
        out = self._state(query, key, value, decay, beta, self.layer, step)
        return self.finished(self._norm(out, gate))


class GatedDelta(DeltaRule):
    """One decay for each value head."""

    def __init__(self, module: Any, layer: int, norm: Any, *, largest: float = 1.0) -> None:
        heads, dims = (module.num_k_heads, module.num_v_heads), (module.head_k_dim, module.head_v_dim)
        gated = GatedNorm(
            *(norm.weight, heads[1], dims[1], norm.variance_epsilon, norm.weight.dtype),
            rounds_input=True,
            rounds_normed=True,
        )
        decay = module.dt_bias, -module.A_log.detach().float().exp()
        super().__init__(module, layer, heads, dims, decay, gated, largest=largest)


class Qwen35Delta(GatedDelta):
    """It projects each part by itself."""

    MODULES: ClassVar[tuple[str, ...]] = ("Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet")

    def __init__(self, module: Any, layer: int) -> None:
        super().__init__(module, layer, module.norm)

    def projected(self, hidden: torch.Tensor) -> Projected:
        module = self.module
        projections = module.in_proj_qkv, module.in_proj_z, module.in_proj_b, module.in_proj_a
        return Projected(*(project(hidden) for project in projections))

    def finished(self, normed: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.module.out_proj(normed)
        return mixed


class Qwen3NextDelta(Qwen35Delta):
    """Its projections are joined by key head."""

    MODULES = ("Qwen3NextGatedDeltaNet",)

    def projected(self, hidden: torch.Tensor) -> Projected:
        module, ((key_heads, value_heads), (key_dim, value_dim)) = self.module, (self._heads, self._dims)
        shared = value_heads // key_heads
        sizes = (key_dim, key_dim, shared * value_dim, shared * value_dim)
        *parts, gate = module.in_proj_qkvz(hidden).unflatten(1, (key_heads, -1)).split(sizes, dim=-1)
        write, inputs = module.in_proj_ba(hidden).unflatten(1, (key_heads, -1)).split(shared, dim=-1)
        joined = torch.cat([part.flatten(1) for part in parts], dim=1)
        return Projected(joined, gate.flatten(1), write.flatten(1), inputs.flatten(1))


class OlmoHybridDelta(GatedDelta):
    """A state's eigenvalues may be negative."""

    MODULES = ("OlmoHybridGatedDeltaNet",)

    def __init__(self, module: Any, layer: int) -> None:
        super().__init__(module, layer, module.o_norm, largest=2.0 if module.allow_neg_eigval else 1.0)

    def projected(self, hidden: torch.Tensor) -> Projected:
        module = self.module
        joined = torch.cat([project(hidden) for project in (module.q_proj, module.k_proj, module.v_proj)], dim=1)
        return Projected(joined, module.g_proj(hidden), module.b_proj(hidden), module.a_proj(hidden))

    def finished(self, normed: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.module.o_proj(normed)
        return mixed


class KimiDelta(DeltaRule):
    """Each row of a state decays by itself."""

    MODULES = ("KimiLinearDeltaAttention",)

    def __init__(self, module: Any, layer: int) -> None:
        heads, dim, forget, norm = module.num_heads, module.head_dim, module.forget_gate, module.o_norm
        rate = -forget.A_log.detach().float().exp().view(heads, 1).expand(heads, dim)
        gated = GatedNorm(
            *(norm.weight, heads, dim, norm.variance_epsilon, module.conv1d.weight.dtype, "sigmoid"), rounds_input=True
        )
        super().__init__(module, layer, (heads, heads), (dim, dim), (forget.dt_bias, rate), gated)

    def projected(self, hidden: torch.Tensor) -> Projected:
        module, forget = self.module, self.module.forget_gate
        joined = torch.cat([project(hidden) for project in (module.q_proj, module.k_proj, module.v_proj)], dim=1)
        gate, inputs = module.g_b_proj(module.g_a_proj(hidden)), forget.f_b_proj(forget.f_a_proj(hidden))
        return Projected(joined, gate, module.b_proj(hidden), inputs)

    def finished(self, normed: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.module.o_proj(normed)
        return mixed


class BailingDelta(DeltaRule):
    """That of Kimi Linear with other projections; logarithms of decays may have a bound."""

    MODULES = ("BailingHybridDeltaAttention",)

    def __init__(self, module: Any, layer: int) -> None:
        heads, dim, forget, norm = module.num_heads, module.head_dim, module.forget_gate, module.o_norm
        bound = forget.lower_bound if forget.safe_gate else None
        rate = forget.A_log.detach().float().exp().view(heads, 1).expand(heads, dim)
        gated = GatedNorm(
            *(norm.weight, heads, dim, norm.variance_epsilon, norm.weight.dtype, "sigmoid"), rounds_input=True
        )
        decay = forget.dt_bias, -rate if bound is None else rate
        super().__init__(module, layer, (heads, heads), (dim, dim), decay, gated, bound=bound, rounds=True)

    def projected(self, hidden: torch.Tensor) -> Projected:
        module = self.module
        joined = torch.cat([project(hidden) for project in (module.q_proj, module.k_proj, module.v_proj)], dim=1)
        inputs = module.forget_gate.f_proj(hidden)
        return Projected(joined, module.g_proj(hidden), module.b_proj(hidden), inputs)

    def finished(self, normed: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.module.o_proj(normed)
        return mixed


class Lightning(Mixer):
    """Queries and keys are as they were projected. The state is float32, where that of transformers is rounded."""

    MODULES = ("MiniMaxLightningAttention",)

    def __init__(self, module: Any, layer: int) -> None:
        heads, dim = module.num_attention_heads, module.head_dim
        self._state = MatrixState((heads, heads), (dim, dim), corrects=False)
        self._decay = torch.exp(-module.slope_rate.detach().float()).view(1, heads)
        super().__init__(module, layer, (self._state.part,))

    def mix(self, hidden: torch.Tensor, step: StateStep) -> torch.Tensor:
        module = self.module
        joined = module.act_fn(module.qkv_proj(hidden)).float().unflatten(1, (module.num_attention_heads, -1))
        query, key, value = joined.split(module.head_dim, dim=-1)
        decay = self._decay.expand(len(hidden), -1)
        out = self._state(query, key, value, decay, None, self.layer, step).to(hidden.dtype)
        gate = sigmoid(module.output_gate(hidden).float()).to(hidden.dtype)
        mixed: torch.Tensor = module.out_proj(gate * module.norm(out.flatten(1)))
        return mixed

    def output(self, mixed: torch.Tensor) -> tuple[torch.Tensor, None]:
        return mixed, None
