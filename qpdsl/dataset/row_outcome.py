"""The outcome of one row of the input: its record in the output, and whether its answer is right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, BinaryIO

from qpdsl.dataset.json_values import plain, plain_rows, shown
from qpdsl.dataset.lossy_figures import lossy_counts
from qpdsl.planner.values.value import NUMBER

if TYPE_CHECKING:
    from qpdsl.dataset.rows import InputRow, Reference
    from qpdsl.executor.runtime.run import InstanceResult

# The keys that every record of the output begins with.
_FIRST_KEYS = ("id", "answer", "score", "tokens_in", "tokens_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`correct` and `greedy_correct` are None where the row has no reference, `greedy` also where greedy was not run.

    Greedy's tokens are not in `tokens_in` and `tokens_out`. `filtered`: see `lossy_counts`. `rows` is None unless the
    rows were asked for.
    """

    id: str
    answer: Any
    score: float | None
    tokens_in: int
    tokens_out: int
    near_ties: int
    seconds: float
    correct: bool | None = None
    greedy: Any = None
    greedy_correct: bool | None = None
    error: str | None = None
    unscored: int = 0
    filtered: Mapping[str, int] = field(default_factory=dict)
    rows: list[dict[str, Any]] | None = None

    def record(self, *, timing: bool) -> dict[str, Any]:
        """The output record; the keys' order is part of the format."""
        record: dict[str, Any] = {
            "id": self.id,
            "answer": plain(self.answer),
            "score": None if self.score is None else plain(self.score),
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
        }
        if self.correct is not None:
            record["correct"] = self.correct
        if self.greedy_correct is not None:
            record["greedy"] = plain(self.greedy)
            record["greedy_correct"] = self.greedy_correct
        if self.unscored:
            record["unscored"] = self.unscored
        if self.error is not None:
            record["error"] = self.error
        if timing:
            record["seconds"] = round(self.seconds, 3)
        if self.rows is not None:
            record["rows"] = self.rows
        return record

    def to_json(self) -> dict[str, Any]:
        """All of it, for the journal."""
        return {**asdict(self), "answer": plain(self.answer), "greedy": plain(self.greedy)}


def outcome(row: InputRow, result: InstanceResult, greedy: InstanceResult | None, *, with_rows: bool) -> Outcome:
    """The outcome of a row from what the program gave and, where it was run, greedy decoding."""
    reference = row.reference
    error = result.error
    if greedy is not None and greedy.timed_out:
        # It has no answer to compare with, which must not count as a wrong one.
        error, greedy = error or f"greedy decoding {greedy.error}", None
    return Outcome(
        id=row.id,
        answer=result.value,
        score=result.score,
        tokens_in=result.prompt_tokens,
        tokens_out=result.sampled_tokens,
        near_ties=result.near_ties,
        unscored=result.unscored,
        filtered=lossy_counts(result.counts),
        seconds=result.seconds,
        correct=None if reference is None else same_answer(result.value, reference),
        greedy=None if greedy is None else greedy.value,
        greedy_correct=None if reference is None or greedy is None else same_answer(greedy.value, reference),
        error=error,
        rows=plain_rows(result.rows) if with_rows else None,
    )


def begins_results(file: BinaryIO) -> bool:
    """Whether an open file holds records of outcomes, as far as its first line tells."""
    try:
        first = json.loads(file.readline())
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and tuple(first)[: len(_FIRST_KEYS)] == _FIRST_KEYS


def same_answer(value: Any, reference: Reference) -> bool:
    """Whether an answer is the reference: equal as text without the space around it, as decimal numbers, or as JSON."""
    if value is None:
        return False
    if isinstance(reference, dict):
        return _same_json(_parsed(value), reference)
    answer, right = shown(value).strip(), reference.strip()
    if answer == right:
        return True
    if not NUMBER.fullmatch(answer) or not NUMBER.fullmatch(right):
        return False
    try:
        return Decimal(answer) == Decimal(right)
    except InvalidOperation:
        return False


def _parsed(value: Any) -> Any:
    """The record in a text, where it holds one."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _same_json(value: Any, other: Any) -> bool:
    """Equal as JSON: `true` is no number, `1` and `1.0` are one, the order of keys does not count."""
    match value, other:
        case dict(), dict():
            return value.keys() == other.keys() and all(_same_json(value[key], other[key]) for key in value)
        case list(), list():
            return len(value) == len(other) and all(map(_same_json, value, other))
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)
