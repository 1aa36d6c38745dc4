"""A record as a row of a plan: its arguments, its id and its right answer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qpdsl.arguments import ArgumentError, bind, from_json
from qpdsl.errors import shorten
from qpdsl.inputs.formats.data_record import DataRecord
from qpdsl.inputs.input_row import InputRow, Reference, RightAnswer
from qpdsl.planner.plan.logical import Parameter
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.value import NUMBER, Value, format_value
from qpdsl.stage_options import check_options

# So many names of fields a message lists.
_MOST_LISTED = 8
_WHOLE = re.compile(r"[+-]?[0-9]{1,1000}")


@dataclass(frozen=True, slots=True)
class RowBinding:
    """Makes the rows of a plan. `settings` are the values of parameters that a record does not set.

    `left_out` are fields that a row need not keep. `is_text`: texts stand for values of other types too.
    """

    plan: PhysicalPlan
    settings: Mapping[str, Value]
    left_out: frozenset[str] = frozenset()
    is_text: bool = False

    def row(self, record: DataRecord, typed: Mapping[str, Any]) -> InputRow:
        """The row of a record whose fields are mapped; `typed` are these with numbers for the texts that spell them.

        Raises ValueError with what is wrong with it.
        """
        fields = record.fields
        own = {
            param.name: self._argument(param, fields[param.name]) for param in self.plan.params if param.name in fields
        }
        try:
            arguments = bind(self.plan.params, {**self.settings, **own})
        except ArgumentError as error:
            names = [f"`{shorten(name, 24)}`" for name in fields][:_MOST_LISTED]
            raise ArgumentError(f"{error}; the fields here are {', '.join(names)}" if names else str(error)) from error
        check_options(self.plan, arguments)
        reference = None if "answer" in arguments else _reference(fields.get("answer"))
        gone = {*arguments, *self.left_out, "id", "answer"}
        kept = {name: value for name, value in typed.items() if name not in gone}
        return InputRow(_id(fields, record.number), arguments, reference, kept)

    def _argument(self, param: Parameter, value: Any) -> Value:
        return from_json(param, cell_value(param, value) if self.is_text else value)


def cell_value(param: Parameter, value: Any) -> Any:
    """What the text of a cell stands for where a parameter takes no text: a number, a truth value, or JSON.

    What it cannot stand for stays a text, which the parameter then refuses.
    """
    if not isinstance(value, str) or param.type == "text":
        return value
    word = value.strip()
    if param.type == "bool":
        return {"true": True, "false": False}.get(word.lower(), value)
    if param.type in ("int", "float"):
        return number_of(word) if NUMBER.fullmatch(word) else value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def number_of(word: str) -> int | float:
    """The number that a text spells which is one."""
    return int(word) if _WHOLE.fullmatch(word) else float(word)


def _id(fields: Mapping[str, Any], number: int) -> str:
    match fields.get("id"):
        case None:
            return str(number)
        case bool() | float() | list() | dict():
            raise ValueError("`id` must be text or a whole number")
        case "":
            raise ValueError("`id` is empty")
        case id_:
            return _text(str(id_), "id")


def _reference(value: object) -> Reference | None:
    if value is None:
        return None
    if isinstance(value, list):
        if not value:
            raise ValueError("`answer` is an empty list; one of several right answers must stand in it")
        return tuple(map(_right_answer, value))
    return _right_answer(value)


def _right_answer(value: object) -> RightAnswer:
    match value:
        case float() if not math.isfinite(value):
            raise ValueError("`answer` is too large a number")
        case str() | int() | float():
            return _text(format_value(value), "answer")
        case dict():
            return value
    raise ValueError("`answer` must be text, a number or an object, or a list of these")


def _text(text: str, field: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError(f"`{field}` holds half of a surrogate pair, which is no text")
    return text
