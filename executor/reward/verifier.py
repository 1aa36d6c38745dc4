"""What a verifier is: a way to lay a problem and its steps out as tokens, and to read a score at each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

# Scores are rounded before anything compares them, so that a batch's rounding errors decide nothing.
SCORE_DIGITS = 5


@dataclass(frozen=True, slots=True)
class StepReads:
    """One tokenized solution: read the logits of `ids` at each of `positions`, one position a step."""

    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    ids: tuple[int, ...]


class Verifier(Protocol):
    """A process or outcome reward model over one loaded model."""

    def reads(self, problem: str, text: str) -> StepReads | None:
        """Where to read the score of each step of `text`; None where the text has no step yet."""

    def score(self, logits: Sequence[float]) -> float:
        """The score of a step from the logits read at its position, in [0, 1]."""


def reduce_scores(scores: Sequence[float], how: str) -> float:
    """One score of a solution's step scores, in step order: last, min, mean, prod or sum. Rounded."""
    if how == "last":
        value = scores[-1]
    elif how == "min":
        value = min(scores)
    elif how == "prod":
        value = math.prod(scores)
    else:
        value = sum(scores)
        if how == "mean":
            value /= len(scores)
    return round(value, SCORE_DIGITS)
