"""State space layers: Mamba-2 (Dao and Gu, 2024), the same code in six families.

A layer keeps the last inputs of a short convolution over x, B and C, and a matrix for each head. Step sizes are clamped
at every token, as a whole forward of transformers does; its one-token form leaves that out.
"""

from __future__ import annotations

from typing import Any

import torch

from qpdsl.executor.engine.model.mixers.mixer import Mixer
from qpdsl.executor.kernels.data.states import StateStep
from qpdsl.executor.kernels.plain.functions import silu, softplus
from qpdsl.executor.kernels.recurrences import MatrixState, ShortConvolution
from qpdsl.executor.requests.errors import UnsupportedModel


class Mamba2(Mixer):
    """h ← e^(A·dt)·h + dt·B⊗x and y = C·h + D·x for each head; B and C are those of its group."""

    MODULES = (
        *("Mamba2Mixer", "BambaMixer", "GraniteMoeHybridMambaLayer"),
        *("NemotronHMamba2Mixer", "Zamba2MambaMixer"),
    )

    def __init__(self, module: Any) -> None:
        if module.activation not in ("silu", "swish"):
            raise UnsupportedModel(f"its convolution is followed by {module.activation}")
        if module.intermediate_size != module.num_heads * module.head_dim:
            raise UnsupportedModel("its heads do not fill its state space layers")
        conv = module.conv1d
        self._convolved = ShortConvolution(conv.weight, conv.bias, conv.weight.dtype, activated=True)
        dims = module.ssm_state_size, module.head_dim
        self._state = MatrixState(module.n_groups, module.num_heads, *dims, corrects=False)
        self._rate = -module.A_log.detach().float().exp()
        super().__init__(module, module.layer_idx, (self._convolved.part, self._state.part))

    def mix(self, hidden: torch.Tensor, step: StateStep) -> torch.Tensor:
        module = self.module
        sizes = module.intermediate_size, module.conv_dim, module.num_heads
        gate, joined, times = self.projected(hidden).split(sizes, dim=-1)
        joined = self._convolved(joined, self.layer, step).float()
        in_groups = module.n_groups * module.ssm_state_size
        values, into, out_of = joined.split((module.intermediate_size, in_groups, in_groups), dim=-1)
        values = values.unflatten(1, (module.num_heads, module.head_dim))
        into, out_of = (part.unflatten(1, (module.n_groups, module.ssm_state_size)) for part in (into, out_of))
        times = softplus((times + module.dt_bias.to(times.dtype)).float()).to(times.dtype)
        least, most = module.time_step_limit
        times = times.clamp(least, most).float()
        decay = torch.exp(self._rate * times)
        out = self._state(out_of, into, values * times[..., None], decay, None, self.layer, step)
        out = out + module.D[:, None] * values
        mixed: torch.Tensor = module.out_proj(self.gated(out.flatten(1), gate).to(hidden.dtype))
        return mixed

    def projected(self, hidden: torch.Tensor) -> torch.Tensor:
        """Gate, then x, B and C, then the step sizes: [T, ...]."""
        out: torch.Tensor = self.module.in_proj(hidden)
        return out

    def gated(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """`out` float32 [T, I] with `gate` [T, I]."""
        normed: torch.Tensor = self.module.norm(out, gate)
        return normed


class FalconH1Mamba2(Mamba2):
    """It scales its projection, and need not have a norm."""

    MODULES = ("FalconH1Mixer",)

    def projected(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.module.in_proj(hidden * self.module.ssm_in_multiplier) * self.module.mup_vector[0]
        return out

    def gated(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        if self.module.mamba_rms_norm:
            return super().gated(out, gate)
        return out * silu(gate.float()).to(gate.dtype)
