"""What every way to draft has in common."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Protocol

from qpdsl.executor.engine.memory.proposal import Proposal
from qpdsl.executor.engine.memory.sequence import Sequence


class Drafter(Protocol):
    """Proposes tokens for samples of one model."""

    def propose(self, samples: Several[Sequence], lengths: Several[int]) -> list[Proposal | None]:
        """What may follow the tokens of each sample: at most so many one after the other, None for nothing."""
        ...

    def forget(self, sample: Sequence) -> None:
        """The sample has ended, was given up or has lost its pages."""
        ...
