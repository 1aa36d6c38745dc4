"""The head compiled for this CPU, as the step calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from qpdsl.executor.engine.step.sampler import NEAR_TIE_GAP, SampledTokens
from qpdsl.executor.engine.step.token_head import HeadDraws

if TYPE_CHECKING:
    from qpdsl.executor.kernels.llvm.head_plan import Reach
    from qpdsl.executor.kernels.llvm.panel_head import PanelHead
    from qpdsl.executor.requests.request import Bits
    from qpdsl.executor.requests.routing import Arm


class CompiledHead:
    """A `TokenHead` over panels. A draw's bits depend on its own hidden state and mask alone."""

    def __init__(self, head: PanelHead) -> None:
        self._head = head

    def __call__(
        self, hidden: torch.Tensor, draws: HeadDraws, arm: Arm | None = None, reach: Reach | None = None
    ) -> SampledTokens:
        """`arm` and `reach`: see `HeadPlanner.plan`."""
        numbers = (draws.rows, draws.temperature, draws.keys, draws.positions, draws.allowed, draws.sparse)
        tokens, logprobs, gaps = self._head(hidden, *numbers, _bits(draws), arm, reach, draws.screened)
        return SampledTokens(tokens, logprobs, gaps < NEAR_TIE_GAP)

    def with_margins(self, hidden: torch.Tensor, draws: HeadDraws) -> tuple[SampledTokens, torch.Tensor]:
        """See `TokenHead`."""
        numbers = (draws.rows, draws.temperature, draws.keys, draws.positions, draws.allowed, draws.sparse)
        margins = torch.empty(len(draws.rows), dtype=torch.float32)
        tokens, logprobs, gaps = self._head(hidden, *numbers, _bits(draws), margins=margins)
        return SampledTokens(tokens, logprobs, gaps < NEAR_TIE_GAP), margins.double()

    def reach(self, draws: HeadDraws) -> Reach | None:
        """What each arm would read of the head; None where there is nothing to choose."""
        return self._head.reach(draws.allowed, draws.sparse, _bits(draws))

    @property
    def weight_bytes(self) -> int:
        """The bytes that a draw over all ids reads."""
        return self._head.weight_bytes


def _bits(draws: HeadDraws) -> Bits | None:
    return None if draws.masks is None else draws.masks.bits
