"""The grader that is used where none is named: an answer is right where it equals the reference."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any

from qpdsl.inputs.input_row import InputRow, Reference
from qpdsl.measures.grader import Grade
from qpdsl.planner.values.json_values import shown
from qpdsl.planner.values.value import NUMBER


class EqualAnswer:
    """Equal as text without the space around it, as decimal numbers, or as JSON values."""

    name = "equal"
    version = "1"

    def applies(self, row: InputRow) -> bool:
        return row.reference is not None

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        assert row.reference is not None
        return Grade(same_answer(answer, row.reference))


def same_answer(value: Any, reference: Reference) -> bool:
    """Whether an answer is the reference, or one of several.

    Equal means equal as text without the space around it, as decimal numbers, or as JSON.
    """
    if isinstance(reference, tuple):
        return any(same_answer(value, right) for right in reference)
    if value is None:
        return False
    if isinstance(reference, dict):
        return same_json(_parsed(value), reference)
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


def same_json(value: Any, other: Any) -> bool:
    """Equal as JSON: `true` is no number, `1` and `1.0` are one, the order of keys does not count."""
    match value, other:
        case dict(), dict():
            return value.keys() == other.keys() and all(same_json(value[key], other[key]) for key in value)
        case list(), list():
            return len(value) == len(other) and all(map(same_json, value, other))
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)
