"""Gated short convolutions: y = C ⊙ conv(B ⊙ x), of LFM2 (Liquid AI, 2025)."""

from __future__ import annotations

from typing import Any

import torch

from qpdsl.executor.engine.model.mixers.mixer import Mixer
from qpdsl.executor.kernels.data.states import StateStep
from qpdsl.executor.kernels.recurrences import ShortConvolution


class GatedConvolution(Mixer):
    """It keeps the last K - 1 inputs of the convolution."""

    MODULES = ("Lfm2ShortConv", "Lfm2MoeShortConv")

    def __init__(self, module: Any) -> None:
        conv = module.conv
        self._convolved = ShortConvolution(conv.weight, conv.bias, conv.weight.dtype)
        super().__init__(module, module.layer_idx, (self._convolved.part,))

    def mix(self, hidden: torch.Tensor, step: StateStep) -> torch.Tensor:
        before, after, values = self.module.in_proj(hidden).chunk(3, dim=-1)
        convolved = self._convolved(before * values, self.layer, step)
        out: torch.Tensor = self.module.out_proj(after * convolved)
        return out
