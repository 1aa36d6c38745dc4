"""What one row of the input came to: the record that is written, and what the summary needs of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from qpdsl.planner.expr import NUMBER, format_value

if TYPE_CHECKING:
    from qpdsl.executor.runtime.candidates import Row
    from qpdsl.executor.runtime.run import Result
    from qpdsl.rows import InputRow, Reference

_DIGITS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`correct` and `greedy_correct` are None where the row has no reference, `greedy` also where greedy was not run.

    Greedy's tokens are not in `tokens_in` and `tokens_out`. `rows` is None unless the rows were asked for.
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


def outcome(row: InputRow, result: Result, greedy: Result | None, *, with_rows: bool) -> Outcome:
    """The outcome of a row from what the program gave and, where it was run, greedy decoding."""
    reference = row.reference
    return Outcome(
        id=row.id,
        answer=result.value,
        score=result.score,
        tokens_in=result.prompt_tokens,
        tokens_out=result.sampled_tokens,
        near_ties=result.near_ties,
        seconds=result.seconds,
        correct=None if reference is None else same_answer(result.value, reference),
        greedy=None if greedy is None else greedy.value,
        greedy_correct=None if reference is None or greedy is None else same_answer(greedy.value, reference),
        error=result.error,
        rows=plain_rows(result.rows) if with_rows else None,
    )


def plain_rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The columns of each row, in the order in which the program made them."""
    return [{name: plain(value) for name, value in row.columns.items()} for row in rows]


def plain(value: Any) -> Any:
    """A value that JSON can carry. Numbers are rounded as scores are, so that no digit depends on the batch."""
    match value:
        case float():
            return round(value, _DIGITS) if math.isfinite(value) else str(value)
        case dict():
            return {name: plain(part) for name, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
    return value


def shown(value: Any) -> str:
    """A value for people: text as it is, a record as JSON."""
    value = plain(value)
    return dumps(value) if isinstance(value, dict | list) else format_value(value)


def same_answer(value: Any, reference: Reference) -> bool:
    """Equal as text with the space around it taken off, or equal as decimal numbers; a record is equal as JSON."""
    if value is None:
        return False
    if isinstance(reference, dict):
        return _same_json(_parsed(value), reference)
    given, wanted = shown(value).strip(), reference.strip()
    if given == wanted:
        return True
    if not NUMBER.fullmatch(given) or not NUMBER.fullmatch(wanted):
        return False
    try:
        return Decimal(given) == Decimal(wanted)
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


def _same_json(one: Any, other: Any) -> bool:
    """Equal as JSON: `true` is no number, `1` and `1.0` are one, the order of keys does not count."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(_same_json(one[key], other[key]) for key in one)
        case list(), list():
            return len(one) == len(other) and all(map(_same_json, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def dumps(record: object) -> str:
    """One line of JSON, without the newline."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False)
