"""What one row of the input came to: the record that is written, and what the summary needs of it.

MERGED: What a run over many rows came to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from qpdsl.planner.plan.evaluate import NUMBER, format_value

if TYPE_CHECKING:
    from qpdsl.dataset.rows import InputRow, Reference
    from qpdsl.executor.runtime.instance.candidates import Row
    from qpdsl.executor.runtime.run import Result


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


@dataclass(frozen=True, slots=True)
class Summary:
    """`seconds` is the wall time of this run alone, in which `sampled` tokens were drawn for the rows it finished.

    A row that failed counts as wrong. Greedy's tokens are not counted.
    """

    outcomes: Sequence[Outcome]
    seconds: float
    sampled: int

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    def lines(self) -> list[str]:
        """For people: aligned, one fact a line."""
        facts = [("rows", str(len(self.outcomes)))]
        if self.failed:
            first = self.failed[0]
            facts.append(("failed", f"{len(self.failed)} (row `{first.id}`: {first.error})"))
        if self._accuracy:
            facts.append(("accuracy", _share(self._accuracy)))
        if self._greedy_accuracy:
            facts.append(("greedy", _share(self._greedy_accuracy)))
        facts.append(("tokens", f"{self._tokens_in:,} in, {self._tokens_out:,} out"))
        facts.append(("near ties", f"{self._near_ties:,}"))
        if self.sampled:
            facts.append(("seconds", f"{self.seconds:.1f} ({self.sampled / self.seconds:,.0f} tokens/s)"))
        return aligned(facts)

    def to_json(self, *, timing: bool) -> dict[str, Any]:
        """For programs; the keys are stable."""
        summary: dict[str, Any] = {"rows": len(self.outcomes), "failed": len(self.failed)}
        for name, verdicts in (("", self._accuracy), ("greedy_", self._greedy_accuracy)):
            if verdicts:
                summary |= {f"{name}correct": sum(verdicts), f"{name}compared": len(verdicts)}
        summary |= {"tokens_in": self._tokens_in, "tokens_out": self._tokens_out, "near_ties": self._near_ties}
        if timing:
            summary |= {"seconds": round(self.seconds, 3)}
        return summary

    @property
    def _accuracy(self) -> list[bool]:
        return [outcome.correct for outcome in self.outcomes if outcome.correct is not None]

    @property
    def _greedy_accuracy(self) -> list[bool]:
        return [outcome.greedy_correct for outcome in self.outcomes if outcome.greedy_correct is not None]

    @property
    def _tokens_in(self) -> int:
        return sum(outcome.tokens_in for outcome in self.outcomes)

    @property
    def _tokens_out(self) -> int:
        return sum(outcome.tokens_out for outcome in self.outcomes)

    @property
    def _near_ties(self) -> int:
        return sum(outcome.near_ties for outcome in self.outcomes)


def aligned(facts: Iterable[tuple[str, str]]) -> list[str]:
    """Names and values in two columns."""
    pairs = list(facts)
    width = max((len(name) for name, _ in pairs), default=0)
    return [f"{name:<{width}}  {value}" for name, value in pairs]


def _share(verdicts: list[bool]) -> str:
    right, total = sum(verdicts), len(verdicts)
    return f"{right}/{total} ({right / total:.1%})"
