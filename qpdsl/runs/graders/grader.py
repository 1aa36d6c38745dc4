"""What a grader is, the right answers of a row, and the grader that is used where none is named: equality."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

from qpdsl.planner.values.value import NUMBER, shown
from qpdsl.runs.data.input_row import InputRow, Reference, RightAnswer


@dataclass(frozen=True, slots=True)
class Grade:
    """What a grader says of one answer. `correct` is None where it cannot say; `note` says why, or what was seen.

    `points` is a share in [0, 1], where there are parts of an answer that can be right: 1.0 or 0.0 for most graders.
    """

    correct: bool | None
    points: float | None = None
    note: str | None = None


class GraderError(Exception):
    """A grader that could not grade one answer; the message names the grader and says why, in one line."""


class Grader(Protocol):
    """Says of the answer to a row whether it is right. The same answer gets the same grade in every run.

    `name` and `version` tell it from others in the record of a run. It is asked in the event loop of the run, so work
    that takes long is done in another thread or process.

    An answer on which `grade` raises counts as wrong, and the run says so; the best is a GraderError. Only a
    UsageError, ModelError or EngineError ends the run, as the next row would have it too.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def applies(self, row: InputRow) -> bool:
        """Whether the row has what an answer is held against."""

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        """The grade of an answer, which is None where the program gave none."""


def right_answers(row: InputRow) -> tuple[RightAnswer, ...]:
    """All answers of which each is right, none where the row has no reference."""
    if row.reference is None:
        return ()
    return row.reference if isinstance(row.reference, tuple) else (row.reference,)


def right_texts(row: InputRow) -> tuple[str, ...]:
    """The same as texts; a record as JSON."""
    return tuple(answer if isinstance(answer, str) else shown(answer) for answer in right_answers(row))


class EqualAnswer:
    """Equal as text without the space around it, as decimal numbers, or as JSON values."""

    name = "equal"
    version = "2"

    def applies(self, row: InputRow) -> bool:
        return row.reference is not None

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        assert row.reference is not None
        return Grade(same_answer(answer, row.reference))


def same_answer(value: Any, reference: Reference) -> bool:
    """Whether an answer is the reference, or one of several.

    Equal means equal as text without the space around it, as decimal numbers, or as JSON objects or arrays.
    """
    if isinstance(reference, tuple):
        return any(same_answer(value, right) for right in reference)
    if value is None:
        return False
    if isinstance(reference, dict):
        return same_json(json_in(value), reference)
    answer, right = shown(value).strip(), reference.strip()
    if answer == right:
        return True
    if answer[:1] in ("{", "[") and right[:1] in ("{", "["):
        return same_json(json_in(answer), json_in(right))
    if not NUMBER.fullmatch(answer) or not NUMBER.fullmatch(right):
        return False
    try:
        return Decimal(answer) == Decimal(right)
    except InvalidOperation:
        return False


def json_in(value: Any) -> Any:
    """The value that a text holds as JSON, where it does; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def same_json(value: Any, other: Any) -> bool:
    """Equal as JSON: `true` is no number, `1` and `1.0` are one, the order of keys does not count."""
    pairs = [(value, other)]
    while pairs:
        match pairs.pop():
            case dict() as one, dict() as two:
                if one.keys() != two.keys():
                    return False
                pairs += [(one[key], two[key]) for key in one]
            case list() as one, list() as two:
                if len(one) != len(two):
                    return False
                pairs += zip(one, two, strict=True)
            case one, two:
                if isinstance(one, bool) != isinstance(two, bool) or one != two:
                    return False
    return True
