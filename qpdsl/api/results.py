"""What a run of a program gives: its value and costs, or why there is no value; and the events of a stream.

Exception
└── RunError    a run that gave no value
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from qpdsl.api.candidate import Candidate
from qpdsl.api.other_names import Suggesting

if TYPE_CHECKING:
    from qpdsl.api.seen_run import SeenRun

R = TypeVar("R", covariant=True)


class RunError(Exception):
    """The message says why; `result` has the rows and costs of the run, as far as there are any.

    Where a Python function of the program raised, its exception is the cause.
    """

    def __init__(self, message: str, result: Result[Any]) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        # A process of a pool hands its error on to the one that waits for it.
        return RunError, (str(self), self.result)


class Tokens(NamedTuple):
    """Tokens as an API would bill them: the whole prompt of every request, and every token sampled.

    Those of programs that functions of this one have called are counted in.
    """

    prompt: int
    sampled: int


@dataclass(frozen=True, repr=False)
class Result(Suggesting, Generic[R]):
    """One run of a program.

    `rows` are the columns of the final rows, and `candidates` these rows with all that they hold. `score` is the first
    row's, None without a `score` stage. `unscored` counts the rows, of all rounds, that were too long for a verifier or
    a judge. `error` says why there is no value. In a `map`, `index` counts the rows of the input and `id` is the row's
    own, or its number.
    """

    score: float | None
    rows: tuple[Mapping[str, Any], ...]
    tokens: Tokens
    near_ties: int
    seconds: float
    error: str | None
    index: int = 0
    id: str = ""
    unscored: int = 0
    candidates: tuple[Candidate, ...] = ()
    _value: R | None = None
    _cause: BaseException | None = field(default=None, compare=False)
    _seen: SeenRun | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        value = f"value={self._value!r}" if self.error is None else f"error={self.error!r}"
        rows = f"{len(self.rows)} row{'' if len(self.rows) == 1 else 's'}"
        named = f"id={self.id!r}, " if self.id else ""
        return f"<result {named}{value}, score={self.score}, {rows}, {self.tokens}, seconds={self.seconds:.2f}>"

    def _repr_html_(self) -> str:
        from qpdsl.api.seen_run import run_html

        value = self._value if isinstance(self._value, str) else repr(self._value)
        score = "" if self.score is None else f"score {self.score:.3g} · "
        tokens = f"{self.tokens.sampled:,} tokens sampled · {self.tokens.prompt:,} of prompts"
        shown, costs = value if self.error is None else f"error: {self.error}", f"{tokens} · {self.seconds:.2f} s"
        return run_html(self.id, self._seen, self.candidates, shown, score + costs)

    def __getstate__(self) -> dict[str, Any]:
        # What a user's function raised may not go into another process, and what was seen of the run is for its cell.
        return {**self.__dict__, "_cause": None, "_seen": None}

    @property
    def transcript(self) -> tuple[Mapping[str, str], ...]:
        """The conversation of the first row, as `Candidate` has it; empty where there is no row."""
        return self.candidates[0].transcript if self.candidates else ()

    @property
    def thought(self) -> str | None:
        """What the model thought before its answer in the first row; None where it did not."""
        return self.candidates[0].thought if self.candidates else None

    @property
    def value(self) -> R:
        """What the program gave back. Raises RunError where it gave nothing."""
        if self.error is not None:
            raise RunError(self.error, self) from self._cause
        return self._value  # type: ignore[return-value]


@dataclass(frozen=True)
class TextPiece:
    """A piece of text as it is generated: of the row at `path`, by the stage with the number `stage`.

    A letter comes once it is whole. One that nothing completes comes at the end, as U+FFFD, of the rows that are left.
    `thought`: it is what the model thinks, and no part of its answer.
    """

    path: tuple[int, ...]
    stage: int
    text: str
    thought: bool = False


@dataclass(frozen=True)
class Finished(Generic[R]):
    """The end of a stream."""

    result: Result[R]
