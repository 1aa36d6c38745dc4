"""What a verifier is: a way to lay a problem and its solution out as tokens, and to read a score at each step.

A kind of verifier is one subclass of `Verifier`, and nothing about the kind is said elsewhere: its name in programs,
how it is recognized, whether it has a head of its own, how texts are laid out, and where the scores are read.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from transformers import PretrainedConfig, PreTrainedTokenizerFast

from qpdsl.executor.text.context import ContextError
from qpdsl.executor.verifiers.checkpoint import CheckpointTensors

# Scores are rounded before anything compares them, so that a batch's rounding errors decide nothing.
SCORE_DIGITS = 5
STEP_SEPARATOR = "\n\n"
_MOST_KEPT = 20_000


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What the kind of a model is recognized by: its configuration, its weights by name, and its tokenizer."""

    config: PretrainedConfig
    tensors: CheckpointTensors
    tokenizer: PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class StepReads:
    """One tokenized solution: read the outputs `ids` of the head at each of `positions`, one position a step."""

    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Solution:
    """What a verifier is shown.

    `raw` asks for what search-and-learn shows its verifiers: the text cut at every separator, with an empty last step
    where it ends in one, and under the `system` prompt where that code puts it in.
    """

    problem: str
    text: str
    raw: bool = False
    system: str = ""

    @property
    def steps(self) -> list[str]:
        """The text's steps; steps without text count only where the solution is `raw`."""
        parts = self.text.split(STEP_SEPARATOR)
        return parts if self.raw else [part for part in parts if part.strip()]


class Verifier(ABC):
    """A process or outcome reward model over one loaded model: one subclass a kind.

    kind:        its name in programs, as in `kind=rlhflow`
    head:        how the names of its head's weights begin; None for a kind that is read off the language model's head
    head_width:  how many numbers a head of its own gives; None for any number
    """

    kind: ClassVar[str]
    head: ClassVar[str | None] = None
    head_width: ClassVar[int | None] = None

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, width: int | None = None, padding: int | None = None
    ) -> None:
        """`width`: how many numbers a head of its own gives; `padding`: the id of the model's padding token, if any.

        Raises ContextError where the tokenizer or the width does not fit the kind.
        """
        self._tokenizer = tokenizer
        # Finished rows and equal rows are asked for again in every round.
        self._kept: dict[Solution, StepReads | None] = {}

    @classmethod
    def recognizes(cls, files: ModelFiles) -> bool:
        """Whether a model that no kind before this one in the registry recognizes is certainly of this kind.

        Never where a model that generates text could have such files: the program then names the kind.
        """
        return False

    def reads(self, problem: str, text: str, *, raw: bool = False, system: str = "") -> StepReads | None:
        """Where to read the score of each step of `text`; None where it has none yet. See `Solution`.

        Raises ContextError where the tokenizer cannot lay it out.
        """
        solution = Solution(problem, text, raw, system)
        if solution not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[solution] = self.lay_out(solution)
        return self._kept[solution]

    @property
    def bounded(self) -> bool:
        """Whether its scores lie in [0, 1]."""
        return True

    @abstractmethod
    def lay_out(self, solution: Solution) -> StepReads | None:
        """Computes what `reads` gives, in time proportional to the length of the text."""

    @abstractmethod
    def score(self, values: Sequence[float]) -> float:
        """The score of a step from the values read at its position: in [0, 1], or an outcome model's own number."""


def two_way(first: float, second: float) -> float:
    """The probability of the first of two logits by softmax, rounded."""
    return round(1.0 / (1.0 + math.exp(min(second - first, 700.0))), SCORE_DIGITS)


def sign_token(tokenizer: PreTrainedTokenizerFast, sign: str, kind: str) -> int:
    """The token id of a sign by itself. Raises ContextError where it has none; `kind` says what it is needed for."""
    ids = tokenizer.encode(sign, add_special_tokens=False)
    if not ids or (len(ids) > 1 and tokenizer.decode(ids[:-1]).strip()):
        raise ContextError(f"its tokenizer has no token for `{sign}`, so it cannot be {kind} verifier")
    return int(ids[-1])


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
