"""The head compiled for this CPU, as the step calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from qpdsl.executor.engine.step.sampler import NEAR_TIE_GAP, SampledTokens
from qpdsl.executor.engine.step.token_head import HeadDraws

if TYPE_CHECKING:
    from qpdsl.executor.kernels.llvm.panel_head import PanelHead


class CompiledHead:
    """A `TokenHead` over panels. A draw's bits depend on its own hidden state and mask alone."""

    def __init__(self, head: PanelHead) -> None:
        self._head = head

    def __call__(self, hidden: torch.Tensor, draws: HeadDraws) -> SampledTokens:
        bits = None if draws.masks is None else draws.masks.bits
        numbers = (draws.rows, draws.temperature, draws.keys, draws.positions, draws.allowed, draws.sparse)
        tokens, logprobs, gaps = self._head(hidden, *numbers, bits)
        return SampledTokens(tokens, logprobs, gaps < NEAR_TIE_GAP)
