"""What a verifier is: a way to lay a problem and its solution out as tokens, and to read a score at each step.

A kind of verifier is one subclass of `Verifier`, and nothing about the kind is said elsewhere: its name in programs,
how it is recognized, whether it has a head of its own, how texts are laid out, and where the scores are read.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from safetensors import safe_open

from qpdsl.executor.checkpoint.model_folder import ModelFolder
from qpdsl.executor.engine.model.heads import Layer, ValueHead
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.text_tokenizer import TextTokenizer

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Scores are rounded before anything compares them, so that a batch's rounding errors decide nothing.
SCORE_DIGITS = 5
STEP_SEPARATOR = "\n\n"
_MAX_KEPT = 20_000
# A step that follows others: it keeps them from ending the text, at the end of which white space may be cut off.
_NEXT = "-"
_MOST = 200_000


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What the kind of a model is recognized by: its configuration, its weights by name, and its tokenizer."""

    config: PretrainedConfig
    tensors: CheckpointTensors
    tokenizer: TextTokenizer


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

    def __init__(self, tokenizer: TextTokenizer, width: int | None = None, padding: int | None = None) -> None:
        """`width`: how many numbers a head of its own gives; `padding`: the id of the model's padding token, if any.

        Raises ContextError where the tokenizer or the width does not fit the kind.
        """
        self._tokenizer = tokenizer
        self.width, self.padding = width, padding
        # Finished rows and equal rows are asked for again in every round.
        self._kept: OrderedDict[Solution, StepReads | None] = OrderedDict()

    @classmethod
    def recognizes(cls, files: ModelFiles) -> bool:
        """Whether a model that no kind before this one in the registry recognizes is certainly of this kind.

        Never where a model that generates text could have such files: the program then names the kind.
        """
        return False

    def reads(self, problem: str, text: str, *, raw: bool = False, system: str = "") -> StepReads | None:
        """Where to read the score of each step of `text`; None where it has none yet. See `Solution`.

        Threads may ask side by side. Raises ContextError where the tokenizer cannot lay it out.
        """
        solution = Solution(problem, text, raw, system)
        try:
            return self._kept[solution]
        except KeyError:
            reads = self.lay_out(solution)
        self._kept[solution] = reads
        if len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        return reads

    def reads_ahead(self, problem: str, steps: str, *, system: str = "") -> StepReads | None:
        """Where to read the scores of the whole `steps` of a text that goes on; None where it scores texts as a whole.

        What it gives for a longer text begins with this, if its `steps_stay`. Raises as `reads` does.
        """
        reads = self.lay_out(Solution(problem, f"{steps}{STEP_SEPARATOR}{_NEXT}", system=system))
        positions = () if reads is None else reads.positions[:-1]
        return None if reads is None or not positions else self._first(reads, len(positions))

    @cached_property
    def steps_stay(self) -> bool:
        """Whether what it reads of a step is the same whatever follows, as far as a short solution shows."""
        steps = ["1 + 1 = 2.", "2 - 1 = 1.", "The answer is 1."]
        try:
            laid = [self.lay_out(Solution("1 + 1 - 1", STEP_SEPARATOR.join(steps[:count]))) for count in (1, 2, 3)]
        except ContextError:
            return False
        whole = laid[-1]
        return whole is not None and all(
            part is not None and len(part.positions) >= count and part == self._first(whole, len(part.positions))
            for count, part in enumerate(laid, 1)
        )

    @staticmethod
    def _first(reads: StepReads, count: int) -> StepReads:
        """The first positions of those, with the tokens up to the last of them."""
        positions = reads.positions[:count]
        return StepReads(reads.tokens[: positions[-1] + 1], positions, reads.ids)

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


def sign_token(tokenizer: TextTokenizer, sign: str, kind: str) -> int:
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


@dataclass(frozen=True)
class CheckpointTensors:
    """The tensors in the files of a model folder."""

    folder: ModelFolder

    def tensor(self, name: str) -> torch.Tensor:
        """Raises KeyError where there is no such tensor, OSError where its file cannot be read."""
        with safe_open(str(self.folder.file(name)), framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor

    def has_head(self, name: str) -> bool:
        """Whether there are weights of a head `name`."""
        return bool(self._linear_layers(name))

    def head(self, name: str, device: str) -> ValueHead | None:
        """The head `name`, on `device`; None where there are no weights of it."""
        layers = self._linear_layers(name)
        return ValueHead([self._layer(layer, device) for layer in layers]) if layers else None

    def _linear_layers(self, name: str) -> list[str]:
        """The linear layers of a head, in order: one, or a sequence with activations between them."""
        tensors = self.folder.tensors
        if f"{name}.weight" in tensors:
            return [name]
        numbers = [
            int(number)
            for tensor in tensors
            if tensor.startswith(f"{name}.") and tensor.endswith(".weight")
            if (number := tensor.removeprefix(f"{name}.").removesuffix(".weight")).isdecimal()
        ]
        return [f"{name}.{number}" for number in sorted(numbers)]

    def _layer(self, name: str, device: str) -> Layer:
        weight, bias = self.tensor(f"{name}.weight"), f"{name}.bias"
        return weight.to(device), self.tensor(bias).to(device) if bias in self.folder.tensors else None


class StoredScore(NamedTuple):
    """A score, and the engine's seconds that it took to read it."""

    score: float
    seconds: float


class ScoreStore:
    """The latest `most` scores that any instance of a session read, by a digest of the model and the tokens so far.

    They are kept only where a model's numbers do not depend on what else is in a batch, so that it makes no difference
    which instance came first.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._scores: OrderedDict[bytes, StoredScore] = OrderedDict()
        self._most = most

    def get(self, content: bytes) -> StoredScore | None:
        stored = self._scores.get(content)
        if stored is not None:
            self._scores.move_to_end(content)
        return stored

    def put(self, content: bytes, score: float, seconds: float = 0.0) -> None:
        """Keeps a score; the first one of a content stays."""
        self._scores.setdefault(content, StoredScore(score, seconds))
        if len(self._scores) > self._most:
            self._scores.popitem(last=False)
