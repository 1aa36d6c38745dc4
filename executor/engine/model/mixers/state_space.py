"""State space layers: Mamba (Gu and Dao, 2023), and Mamba-2 (Dao and Gu, 2024), the same code in six families.

A layer keeps the last inputs of a short convolution, and N numbers for each channel. In Mamba-2 all channels of a head
decay alike. Its step sizes are clamped at every token, as a whole forward of transformers does; the one-token form of
transformers leaves that out.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from qpdsl.executor.engine.model.mixers.mixer import Mixer
from qpdsl.executor.kernels.data.states import StateStep
from qpdsl.executor.kernels.plain.functions import silu, softplus
from qpdsl.executor.kernels.recurrences import GatedNorm, MatrixState, SelectiveState, ShortConvolution
from qpdsl.executor.requests.errors import UnsupportedModel


class Mamba2(Mixer):
    """h ← e^(A·dt)·h + dt·B⊗x and y = C·h + D·x for each head; B and C are those of its group."""

    MODULES: ClassVar[tuple[str, ...]] = (
        *("Mamba2Mixer", "BambaMixer", "GraniteMoeHybridMambaLayer"),
        *("NemotronHMamba2Mixer", "Zamba2MambaMixer"),
    )

    def __init__(self, module: Any, layer: int) -> None:
        if module.intermediate_size != module.num_heads * module.head_dim:
            raise UnsupportedModel("its heads do not fill its state space layers")
        self._convolved = convolution(module)
        dims = module.ssm_state_size, module.head_dim
        self._state = MatrixState((module.n_groups, module.num_heads), dims, corrects=False)
        self._rate = -module.A_log.detach().float().exp()
        self._norm = self.norm(module)
        super().__init__(module, layer, (self._convolved.part, self._state.part))

    def mix(self, hidden: torch.Tensor, step: StateStep) -> torch.Tensor:
        module = self.module
        sizes = [module.intermediate_size, module.conv_dim, module.num_heads]
        gate, joined, times = torch.split(self.projected(hidden), sizes, dim=-1)
        joined = self._convolved(joined, self.layer, step).float()
        in_groups = module.n_groups * module.ssm_state_size
        values, into, out_of = torch.split(joined, [module.intermediate_size, in_groups, in_groups], dim=-1)
        values = values.view(-1, module.num_heads, module.head_dim)
        into, out_of = (part.view(-1, module.n_groups, module.ssm_state_size) for part in (into, out_of))
        times = softplus((times + module.dt_bias.to(times.dtype)).float()).to(times.dtype)
        least, most = module.time_step_limit
        times = times.clamp(least, most).float()
        decay = torch.exp(self._rate * times)
        out = self._state(out_of, into, values * times[..., None], decay, None, self.layer, step)
        out = out + module.D[:, None] * values
        mixed: torch.Tensor = module.out_proj(self.gated(out, gate))
        return mixed

    def projected(self, hidden: torch.Tensor) -> torch.Tensor:
        """Gate, then x, B and C, then the step sizes: [T, ...]."""
        out: torch.Tensor = self.module.in_proj(hidden)
        return out

    def norm(self, module: Any) -> GatedNorm | None:
        norm, width = module.norm, module.intermediate_size
        # Some releases of transformers norm a whole row.
        size = getattr(norm, "group_size", width)
        dtype = module.conv1d.weight.dtype
        return GatedNorm(norm.weight, width // size, size, norm.variance_epsilon, dtype, gate_first=True)

    def gated(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """`out` float32 [T, heads, P], normed with `gate` [T, I]: [T, I]."""
        assert self._norm is not None
        return self._norm(out, gate)


class FalconH1Mamba2(Mamba2):
    """It scales its projection, and need not have a norm."""

    MODULES = ("FalconH1Mixer",)

    def projected(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.module.in_proj(hidden * self.module.ssm_in_multiplier) * self.module.mup_vector[0]
        return out

    def norm(self, module: Any) -> GatedNorm | None:
        if not module.mamba_rms_norm:
            return None
        norm, groups = module.norm, module.n_groups
        sizes = groups, module.intermediate_size // groups
        dtype, gate_first = module.conv1d.weight.dtype, not norm.norm_before_gate
        return GatedNorm(norm.weight, *sizes, norm.variance_epsilon, dtype, gate_first=gate_first)

    def gated(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        if self._norm is not None:
            return self._norm(out, gate)
        return (out.flatten(1) * silu(gate.float()).to(gate.dtype)).to(gate.dtype)


class Mamba1(Mixer):
    """h ← e^(A·dt)·h + dt·B·x and y = C·h + D·x for each channel; B and C are those of the token."""

    MODULES = ("MambaMixer", "FalconMambaMixer", "JambaMambaMixer")

    def __init__(self, module: Any, layer: int) -> None:
        self._convolved = convolution(module)
        self._state = SelectiveState(-torch.exp(module.A_log.detach().float()))
        super().__init__(module, layer, (self._convolved.part, self._state.part))
        # It is added after the product was rounded.
        self._time_bias = module.dt_proj.bias
        module.dt_proj.bias = None

    def mix(self, hidden: torch.Tensor, step: StateStep) -> torch.Tensor:
        module = self.module
        values, gate = module.in_proj(hidden).chunk(2, dim=-1)
        values = self._convolved(values, self.layer, step)
        sizes = module.time_step_rank, module.ssm_state_size, module.ssm_state_size
        parts = module.x_proj(values).split(sizes, dim=-1)
        if hasattr(module, "dt_layernorm"):
            norms = module.dt_layernorm, module.b_layernorm, module.c_layernorm
            parts = tuple(norm(part) for norm, part in zip(norms, parts, strict=True))
        times, into, out_of = parts
        times = module.dt_proj(times)
        times = softplus((times + self._time_bias.to(times.dtype)).float()).to(times.dtype).float()
        wide = values.float()
        out = self._state(times, times * wide, into.float(), out_of.float(), self.layer, step)
        out = out + module.D.float() * wide
        mixed: torch.Tensor = module.out_proj((out * silu(gate.float()).to(gate.dtype)).to(hidden.dtype))
        return mixed

    def own(self, *arguments: Any, **named: Any) -> Any:
        self.module.dt_proj.bias = self._time_bias
        try:
            return super().own(*arguments, **named)
        finally:
            self.module.dt_proj.bias = None

    def undo(self) -> None:
        super().undo()
        self.module.dt_proj.bias = self._time_bias


def convolution(module: Any) -> ShortConvolution:
    """The one of a state space layer, with its activation."""
    if module.activation not in ("silu", "swish"):
        raise UnsupportedModel(f"its convolution is followed by {module.activation}")
    conv = module.conv1d
    return ShortConvolution(conv.weight, conv.bias, conv.weight.dtype, activated=True)
