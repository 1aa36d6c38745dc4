"""What a verifier is: a way to lay a problem and its solution out as tokens, and to read a score at each step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

# Scores are rounded before anything compares them, so that a batch's rounding errors decide nothing.
SCORE_DIGITS = 5
STEP_SEPARATOR = "\n\n"
_KNOWN_MAX = 20_000


@dataclass(frozen=True, slots=True)
class StepReads:
    """One tokenized solution: read the outputs `ids` of the head at each of `positions`, one position a step."""

    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Solution:
    """What a verifier is shown.

    `raw` asks for what search-and-learn shows its verifiers: the text cut at every separator, an empty last step and
    all, under the `system` prompt where that code puts it in.
    """

    problem: str
    text: str
    raw: bool = False
    system: str = ""

    @property
    def steps(self) -> list[str]:
        """The text's steps; only where it is `raw`, those too that say nothing."""
        parts = self.text.split(STEP_SEPARATOR)
        return parts if self.raw else [part for part in parts if part.strip()]


class Verifier(ABC):
    """A process or outcome reward model over one loaded model: one subclass a kind."""

    def __init__(self) -> None:
        # Rows that are finished, and equal ones, are asked for again every round.
        self._known: dict[Solution, StepReads | None] = {}

    def reads(self, problem: str, text: str, *, raw: bool = False, system: str = "") -> StepReads | None:
        """Where to read the score of each step of `text`; None where it has none yet. See `Solution`.

        Raises ContextError where the tokenizer cannot lay it out.
        """
        solution = Solution(problem, text, raw, system)
        if solution not in self._known:
            if len(self._known) >= _KNOWN_MAX:
                del self._known[next(iter(self._known))]
            self._known[solution] = self.lay_out(solution)
        return self._known[solution]

    @property
    def bounded(self) -> bool:
        """Whether its scores lie in [0, 1]."""
        return True

    @abstractmethod
    def lay_out(self, solution: Solution) -> StepReads | None:
        """What `reads` gives, worked out, in time that grows with the text as its tokens do."""

    @abstractmethod
    def score(self, values: Sequence[float]) -> float:
        """The score of a step from the values read at its position: in [0, 1], or an outcome model's own number."""


def two_way(wanted: float, other: float) -> float:
    """The softmax of two logits at the first of them, rounded."""
    return round(1.0 / (1.0 + math.exp(min(other - wanted, 700.0))), SCORE_DIGITS)


def reduce_scores(scores: Sequence[float], strategy: str) -> float:
    """One score of a solution's step scores, in step order: last, min, mean, prod or sum. Rounded."""
    if strategy == "last":
        value = scores[-1]
    elif strategy == "min":
        value = min(scores)
    elif strategy == "prod":
        value = math.prod(scores)
    else:
        value = sum(scores)
        if strategy == "mean":
            value /= len(scores)
    return round(value, SCORE_DIGITS)
