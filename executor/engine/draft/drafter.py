"""What every way to draft has in common."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Protocol, runtime_checkable

import torch

from qpdsl.executor.engine.memory.proposal import Proposal
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence


class Drafter(Protocol):
    """Proposes tokens for samples of one model."""

    def propose(self, samples: Several[Sequence], lengths: Several[int]) -> list[Proposal | None]:
        """What may follow the tokens of each sample: at most so many one after the other, None for nothing."""
        ...

    def forget(self, sample: Sequence) -> None:
        """The sample has ended, was given up or has lost its pages."""
        ...


@runtime_checkable
class FeatureDrafter(Drafter, Protocol):
    """One that looks at the model's hidden states after the last norm, which its head reads."""

    def saw(self, chunk: Chunk, start: int, hidden: torch.Tensor) -> None:
        """A forward gave hidden states [rows, d] for a chunk, whose first row stands at position `start`.

        They are overwritten by the next forward.
        """
        ...

    def forked(self, prompt: Sequence, samples: Several[Sequence]) -> None:
        """A prompt that was seen is now these samples."""
        ...

    def accepted(self, sample: Sequence, nodes: Several[int]) -> None:
        """Of its proposal, the tokens of these numbers are now the sample's, one after the other."""
        ...
