"""Linear attention, which keeps a matrix of all keys and values for each head.

The gated delta rule (Yang et al., 2024) of Qwen3-Next, Qwen3.5 and OLMo Hybrid, and that of Kimi Linear (2025): a layer
keeps the last inputs of a short convolution over queries, keys and values besides, and queries and keys have length 1.
Lightning attention of MiniMax-01 (2025) has neither; each head decays at a rate of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch

from qpdsl.executor.engine.model.mixers.mixer import Mixer
from qpdsl.executor.kernels.data.states import StateStep
from qpdsl.executor.kernels.plain.functions import sigmoid, softplus
from qpdsl.executor.kernels.recurrences import MatrixState, ShortConvolution
from qpdsl.executor.requests.errors import UnsupportedModel

_EPSILON = 1e-6


class Projected(NamedTuple):
    """What the projections of a layer make of T rows.

    joined: queries and keys [Hk, dk] and then values [Hv, dv], each row as one vector
    gate:   [T, Hv, dv]
    write:  [T, Hv], before the sigmoid
    decay:  float32 [T, Hv] or [T, Hv, dk], the factor of the state
    """

    joined: torch.Tensor
    gate: torch.Tensor
    write: torch.Tensor
    decay: torch.Tensor


class DeltaRule(Mixer):
    """What these modules have in common."""

    def __init__(
        self, module: Any, layer: int, heads: tuple[int, int], dims: tuple[int, int], *, by_row: bool = False
    ) -> None:
        """`heads` and `dims`: those of keys and of values."""
        if module.activation not in ("silu", "swish"):
            raise UnsupportedModel(f"its convolution is followed by {module.activation}")
        self._heads, self._dims = heads, dims
        conv = module.conv1d
        self._convolved = ShortConvolution(conv.weight, conv.bias, conv.weight.dtype, activated=True)
        self._state = MatrixState(*heads, *dims, corrects=True, by_row=by_row)
        super().__init__(module, layer, (self._convolved.part, self._state.part))

    @abstractmethod
    def projected(self, hidden: torch.Tensor) -> Projected: ...

    @abstractmethod
    def finished(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """The module's norm and its last projection, of `out` [T, Hv, dv]."""

    @property
    def largest_write(self) -> float:
        return 1.0

    def mix(self, hidden: torch.Tensor, step: StateStep) -> torch.Tensor:
        joined, gate, write, decay = self.projected(hidden)
        joined = self._convolved(joined, self.layer, step).float()
        (key_heads, value_heads), (key_dim, value_dim) = self._heads, self._dims
        pairs = joined[:, : 2 * key_heads * key_dim].unflatten(1, (2, key_heads, key_dim))
        query, key = (pairs * torch.rsqrt((pairs * pairs).sum(-1, keepdim=True) + _EPSILON)).unbind(1)
        value = joined[:, 2 * key_heads * key_dim :].unflatten(1, (value_heads, value_dim))
        beta = sigmoid(write.float()).to(hidden.dtype).float() * self.largest_write
        out = self._state(query * key_dim**-0.5, key, value, decay, beta, self.layer, step)
        return self.finished(out.to(hidden.dtype), gate)


class GatedDelta(DeltaRule):
    """One decay for each value head."""

    def __init__(self, module: Any, layer: int) -> None:
        heads = module.num_k_heads, module.num_v_heads
        super().__init__(module, layer, heads, (module.head_k_dim, module.head_v_dim))
        self._rate = -module.A_log.detach().float().exp()

    def decay(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.exp(self._rate * softplus(inputs.float() + self.module.dt_bias))

    def finished(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        module = self.module
        normed = module.norm(out.flatten(0, 1), gate.flatten(0, 1))
        mixed: torch.Tensor = module.out_proj(normed.view(len(out), -1))
        return mixed


class Qwen35Delta(GatedDelta):
    """It projects each part by itself."""

    MODULES = ("Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet")

    def projected(self, hidden: torch.Tensor) -> Projected:
        module = self.module
        gate = module.in_proj_z(hidden).unflatten(1, (self._heads[1], self._dims[1]))
        decay = self.decay(module.in_proj_a(hidden))
        return Projected(module.in_proj_qkv(hidden), gate, module.in_proj_b(hidden), decay)


class Qwen3NextDelta(GatedDelta):
    """Its projections are joined by key head."""

    MODULES = ("Qwen3NextGatedDeltaNet",)

    def projected(self, hidden: torch.Tensor) -> Projected:
        module, ((key_heads, value_heads), (key_dim, value_dim)) = self.module, (self._heads, self._dims)
        shared = value_heads // key_heads
        sizes = (key_dim, key_dim, shared * value_dim, shared * value_dim)
        *parts, gate = module.in_proj_qkvz(hidden).unflatten(1, (key_heads, -1)).split(sizes, dim=-1)
        write, rate = module.in_proj_ba(hidden).unflatten(1, (key_heads, -1)).split(shared, dim=-1)
        joined = torch.cat([part.flatten(1) for part in parts], dim=1)
        gate = gate.reshape(-1, value_heads, value_dim)
        return Projected(joined, gate, write.flatten(1), self.decay(rate.flatten(1)))


class OlmoHybridDelta(GatedDelta):
    """A state's eigenvalues may be negative."""

    MODULES = ("OlmoHybridGatedDeltaNet",)

    @property
    def largest_write(self) -> float:
        return 2.0 if self.module.allow_neg_eigval else 1.0

    def projected(self, hidden: torch.Tensor) -> Projected:
        module = self.module
        joined = torch.cat([project(hidden) for project in (module.q_proj, module.k_proj, module.v_proj)], dim=1)
        gate = module.g_proj(hidden).unflatten(1, (self._heads[1], self._dims[1]))
        return Projected(joined, gate, module.b_proj(hidden), self.decay(module.a_proj(hidden)))

    def finished(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        normed = self.module.o_norm(out.flatten(0, 1), gate.flatten(0, 1))
        mixed: torch.Tensor = self.module.o_proj(normed.view(len(out), -1))
        return mixed


class KimiDelta(DeltaRule):
    """Each row of a state decays by itself."""

    MODULES = ("KimiLinearDeltaAttention",)

    def __init__(self, module: Any, layer: int) -> None:
        heads, dim = module.num_heads, module.head_dim
        super().__init__(module, layer, (heads, heads), (dim, dim), by_row=True)
        self._rate = -module.forget_gate.A_log.detach().float().exp().view(heads, 1)

    def projected(self, hidden: torch.Tensor) -> Projected:
        module, forget = self.module, self.module.forget_gate
        shape = (self._heads[0], self._dims[0])
        joined = torch.cat([project(hidden) for project in (module.q_proj, module.k_proj, module.v_proj)], dim=1)
        rate = forget.f_b_proj(forget.f_a_proj(hidden)).float() + forget.dt_bias.float()
        decay = torch.exp(self._rate * softplus(rate).unflatten(1, shape))
        gate = module.g_b_proj(module.g_a_proj(hidden)).unflatten(1, shape)
        return Projected(joined, gate, module.b_proj(hidden), decay)

    def finished(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.module.o_proj(self.module.o_norm(out, gate).flatten(1))
        return mixed


class Lightning(Mixer):
    """Queries and keys are as they were projected. The state is float32, where that of transformers is rounded."""

    MODULES = ("MiniMaxLightningAttention",)

    def __init__(self, module: Any, layer: int) -> None:
        heads, dim = module.num_attention_heads, module.head_dim
        self._state = MatrixState(heads, heads, dim, dim, corrects=False)
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
