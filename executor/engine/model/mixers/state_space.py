"""State space layers: Mamba (Gu and Dao, 2023), and Mamba-2 (Dao and Gu, 2024), the same code in six families.

A layer keeps the last inputs of a short convolution, and N numbers for each channel. In Mamba-2 all channels of a head
decay alike. Its step sizes are clamped at every token, as a whole forward of transformers does; the one-token form of
transformers leaves that out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from qpdsl.executor.engine.model.mixers.mixer import Mixer, ProjectedMixer
from qpdsl.executor.kernels.data.states import StateStep
from qpdsl.executor.kernels.data.weights import FloatWeight
from qpdsl.executor.kernels.linear import PackedLinear
from qpdsl.executor.kernels.plain.functions import silu, softplus
from qpdsl.executor.kernels.recurrences import GatedNorm, MatrixState, SelectiveState, ShortConvolution
from qpdsl.executor.requests.errors import UnsupportedModel


class Mamba2(ProjectedMixer):
    """h ← e^(A·dt)·h + dt·B⊗x and y = C·h + D·x for each head; B and C are those of its group."""

    MODULES: ClassVar[tuple[str, ...]] = (
        *("Mamba2Mixer", "BambaMixer", "GraniteMoeHybridMambaLayer"),
        *("NemotronHMamba2Mixer", "Zamba2MambaMixer"),
    )

    def __init__(self, module: Any, layer: int, dtype: torch.dtype) -> None:
        if module.intermediate_size != module.num_heads * module.head_dim:
            raise UnsupportedModel("its heads do not fill its state space layers")
        self._convolved = convolution(module, dtype)
        dims = module.ssm_state_size, module.head_dim
        self._state = MatrixState((module.n_groups, module.num_heads), dims)
        self._rate = -module.A_log.detach().float().exp()
        self._norm = self.norm(module, dtype)
        super().__init__(module, layer, (self._convolved.part, self._state.part))

    def between(self, joined: torch.Tensor, step: StateStep) -> torch.Tensor:
        """`joined`: gate, then x, B and C, then the step sizes."""
        module = self.module
        sizes = [module.intermediate_size, module.conv_dim, module.num_heads]
        gate, joined, times = torch.split(joined, sizes, dim=-1)
        joined = self._convolved(joined, self.layer, step).float()
        in_groups = module.n_groups * module.ssm_state_size
        values, into, out_of = torch.split(joined, [module.intermediate_size, in_groups, in_groups], dim=-1)
        values = values.view(-1, module.num_heads, module.head_dim)
        into, out_of = (part.view(-1, module.n_groups, module.ssm_state_size) for part in (into, out_of))
        times = softplus((times + module.dt_bias.to(times.dtype)).float()).to(times.dtype)
        least, most = module.time_step_limit
        times = times.clamp(least, most).float()
        decay = torch.exp(self._rate * times)
        out = self._state(out_of, into, values * times[..., None], decay, self.layer, step)
        return self.gated(out + module.D[:, None] * values, gate)

    def norm(self, module: Any, dtype: torch.dtype) -> GatedNorm | None:
        norm, width = module.norm, module.intermediate_size
        # Some releases of transformers norm a whole row.
        size = getattr(norm, "group_size", width)
        return GatedNorm(norm.weight, width // size, size, norm.variance_epsilon, dtype, gate_first=True)

    def gated(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """`out` float32 [T, heads, P], normed with `gate` [T, I]: [T, I]."""
        assert self._norm is not None
        return self._norm(out, gate)


class FalconH1Mamba2(Mamba2):
    """It scales its projection, and need not have a norm."""

    MODULES = ("FalconH1Mixer",)

    def __init__(self, module: Any, layer: int, dtype: torch.dtype) -> None:
        super().__init__(module, layer, dtype)
        factor, bias = module.ssm_in_multiplier, module.in_proj.bias
        self._scale = module.mup_vector.detach().to(dtype).flatten() * factor
        # What multiplies the input of the projection does not multiply its bias.
        self._shift = None if bias is None else module.mup_vector.detach().flatten() * (1 - factor) * bias.detach()

    def between(self, joined: torch.Tensor, step: StateStep) -> torch.Tensor:
        scaled = joined * self._scale
        return super().between(scaled if self._shift is None else scaled + self._shift.to(joined.dtype), step)

    def norm(self, module: Any, dtype: torch.dtype) -> GatedNorm | None:
        if not module.mamba_rms_norm:
            return None
        norm, groups = module.norm, module.n_groups
        sizes = groups, module.intermediate_size // groups
        return GatedNorm(norm.weight, *sizes, norm.variance_epsilon, dtype, gate_first=not norm.norm_before_gate)

    def gated(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        if self._norm is not None:
            return self._norm(out, gate)
        return (out.flatten(1) * silu(gate.float()).to(gate.dtype)).to(gate.dtype)


class Selective(Mixer):
    """h ← e^(A·dt)·h + dt·B·x and y = C·h + D·x for each channel; B and C are those of the token and of its head."""

    def __init__(
        self, module: Any, layer: int, dtype: torch.dtype, logarithms: Sequence[torch.Tensor], bias: torch.Tensor
    ) -> None:
        """`logarithms`: ln(-A) [I, N] of each head; `bias` of dt, [I] of all of them."""
        self._convolved = convolution(module, dtype)
        names = ("recurrent", *(f"recurrent {head}" for head in range(1, len(logarithms))))
        self._states = [
            SelectiveState(-torch.exp(logarithm.detach().float()), name)
            for logarithm, name in zip(logarithms, names, strict=True)
        ]
        self._bias, self._direct = bias.detach(), module.D.detach().float().flatten()
        super().__init__(module, layer, (self._convolved.part, *(state.part for state in self._states)))

    @abstractmethod
    def projected(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x and the gate of it [T, I]."""

    @abstractmethod
    def parameters(self, head: int, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """dt [T, I], without its bias, and B and C [T, N] for the `values` [T, I] of a head."""

    def mix(self, hidden: torch.Tensor, step: StateStep) -> torch.Tensor:
        values, gate = self.projected(hidden)
        values = self._convolved(values, self.layer, step)
        heads = len(self._states)
        outs = []
        parts = zip(values.chunk(heads, dim=1), self._bias.chunk(heads), strict=True)
        for head, (part, bias) in enumerate(parts):
            times, into, out_of = self.parameters(head, part)
            # The bias is added after the product was rounded.
            times = softplus((times + bias.to(times.dtype)).float()).to(times.dtype).float()
            update = times * part.float()
            outs.append(self._states[head](times, update, into.float(), out_of.float(), self.layer, step))
        out = torch.cat(outs, dim=1) + self._direct * values.float()
        mixed: torch.Tensor = self.module.out_proj((out * silu(gate.float()).to(gate.dtype)).to(hidden.dtype))
        return mixed


class Mamba1(Selective):
    """One head, as in Jamba, which norms dt, B and C."""

    MODULES = ("MambaMixer", "FalconMambaMixer", "JambaMambaMixer")

    def __init__(self, module: Any, layer: int, dtype: torch.dtype) -> None:
        self._time_bias = module.dt_proj.bias
        super().__init__(module, layer, dtype, [module.A_log], self._time_bias)

    def take_over(self) -> None:
        super().take_over()
        self.module.dt_proj.bias = None

    def projected(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, gate = self.module.in_proj(hidden).chunk(2, dim=-1)
        return values, gate

    def parameters(self, head: int, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        module = self.module
        sizes = module.time_step_rank, module.ssm_state_size, module.ssm_state_size
        times, into, out_of = module.x_proj(values).split(sizes, dim=-1)
        if hasattr(module, "dt_layernorm"):
            times, into, out_of = module.dt_layernorm(times), module.b_layernorm(into), module.c_layernorm(out_of)
        return module.dt_proj(times), into, out_of

    def own(self, *arguments: Any, **named: Any) -> Any:
        self.module.dt_proj.bias = self._time_bias
        try:
            return super().own(*arguments, **named)
        finally:
            self.module.dt_proj.bias = None

    def undo(self) -> None:
        super().undo()
        self.module.dt_proj.bias = self._time_bias


class ZambaMamba1(Selective):
    """Several heads, with projections in parameters of the module."""

    MODULES = ("ZambaMambaMixer",)

    def __init__(self, module: Any, layer: int, dtype: torch.dtype) -> None:
        super().__init__(module, layer, dtype, [*module.A_log], module.dt_proj_bias.flatten())
        self._parameters, self._times = (
            [PackedLinear(FloatWeight(weight)) for weight in weights.detach()]
            for weights in (module.x_proj_weight, module.dt_proj_weight)
        )

    def projected(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, gate = self.module.in_proj(hidden).view(len(hidden), -1, 2).unbind(-1)
        return values.contiguous(), gate.contiguous()

    def parameters(self, head: int, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        module = self.module
        sizes = [module.time_step_rank, module.ssm_state_size, module.ssm_state_size]
        times, into, out_of = torch.split(self._parameters[head](values), sizes, dim=-1)
        return self._times[head](times), into, out_of


def convolution(module: Any, dtype: torch.dtype) -> ShortConvolution:
    """The one of a state space layer, with its activation; `dtype`: of what it keeps."""
    if module.activation not in ("silu", "swish"):
        raise UnsupportedModel(f"its convolution is followed by {module.activation}")
    conv = module.conv1d
    return ShortConvolution(conv.weight, conv.bias, dtype, activated=True)
