"""Gated short convolutions of LFM2 (Liquid AI, 2025), and gated linear recurrences of Griffin (De et al., 2024)."""

from __future__ import annotations

from typing import Any

import torch

from qpdsl.executor.engine.model.mixers.mixer import ProjectedMixer
from qpdsl.executor.kernels.data.states import FRESH, StateStep
from qpdsl.executor.kernels.data.weights import FloatWeight
from qpdsl.executor.kernels.linear import PackedLinear
from qpdsl.executor.kernels.plain.functions import sigmoid
from qpdsl.executor.kernels.recurrences import SelectiveState, ShortConvolution

# The c of the paper's equation 6.
_SHARPNESS = 8.0


class GatedConvolution(ProjectedMixer):
    """y = C ⊙ conv(B ⊙ x). It keeps the last K - 1 inputs of the convolution."""

    MODULES = ("Lfm2ShortConv", "Lfm2MoeShortConv", "Lfm3ShortConv")

    def __init__(self, module: Any, layer: int, dtype: torch.dtype) -> None:
        conv = module.conv
        self._convolved = ShortConvolution(conv.weight, conv.bias, dtype)
        super().__init__(module, layer, (self._convolved.part,))

    def between(self, joined: torch.Tensor, step: StateStep) -> torch.Tensor:
        before, after, values = joined.chunk(3, dim=-1)
        return after * self._convolved(before * values, self.layer, step)


class GatedRecurrence(ProjectedMixer):
    """The RG-LRU: h ← a·h + sqrt(1 - a²)·(i ⊙ x), with log a = -c·softplus(Λ)·r and gates r and i of x.

    It keeps h and the last inputs of a convolution. The square root is 1 where a text begins.
    """

    MODULES = ("RecurrentGemmaRecurrentBlock",)
    FIRST, LAST = ("linear_x", "linear_y"), "linear_out"

    def __init__(self, module: Any, layer: int, dtype: torch.dtype) -> None:
        unit, conv = module.rg_lru, module.conv_1d
        self._convolved = ShortConvolution(conv.weight, conv.bias, dtype)
        self._state = SelectiveState(torch.ones(module.lru_width, 1))
        self._input_gates, self._gates = (
            [PackedLinear(FloatWeight(part.t()), bias) for part, bias in zip(weight, biases, strict=True)]
            for weight, biases in (
                (unit.input_gate_weight.detach(), unit.input_gate_bias.detach()),
                (unit.recurrent_gate_weight.detach(), unit.recurrent_gate_bias.detach()),
            )
        )
        self._rate = -_SHARPNESS * torch.nn.functional.softplus(unit.recurrent_param.detach())
        super().__init__(module, layer, (self._convolved.part, self._state.part))

    def between(self, joined: torch.Tensor, step: StateStep) -> torch.Tensor:
        values, gate = joined.chunk(2, dim=-1)
        values = self._convolved(values, self.layer, step)
        rate = self._gated(values, self._gates) * self._rate
        factor = torch.sqrt(1 - torch.exp(2 * rate))
        factor[[segment.row for segment in step.segments if segment.source == FRESH]] = 1.0
        update = values * self._gated(values, self._input_gates) * factor
        if rate.dtype != torch.float32:
            # The factor of the state is rounded to the type of the model.
            rate = torch.log(torch.exp(rate).float())
        ones = torch.ones(1, 1).expand(len(joined), 1)
        out = self._state(rate, update.float(), ones, ones, self.layer, step).to(joined.dtype)
        gated: torch.Tensor = out * self.module.act_fn(gate.contiguous())
        return gated

    def output(self, mixed: torch.Tensor) -> tuple[torch.Tensor, None]:
        return mixed, None

    @staticmethod
    def _gated(values: torch.Tensor, gates: list[PackedLinear]) -> torch.Tensor:
        """A sigmoid for each number, of the numbers of its block."""
        parts = values.chunk(len(gates), dim=1)
        joined = torch.cat([gate(part) for gate, part in zip(gates, parts, strict=True)], dim=1)
        return sigmoid(joined.float()).to(values.dtype)
