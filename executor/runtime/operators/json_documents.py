"""Values out of JSON texts: one value at a path for `extract`, the whole record for `return`."""

from __future__ import annotations

import json
import math
import sys
from typing import Any, NoReturn

from qpdsl.executor.runtime.instance.candidates import JsonValue
from qpdsl.planner.values.value import Record, Value, fields_of, frozen, is_list, is_record, item_of

# Python reads no integer of many more.
_MAX_DIGITS = 4000


def value_at(steps: tuple[str | int, ...], text: str) -> object:
    """The value at a path of the JSON document in `text`, None where there is no document or no such path."""
    try:
        value: object = _loaded(text)
    except (ValueError, RecursionError):
        return None
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def typed(value: object, type: str) -> Value:
    """A JSON value as a value of the column type `type`, None where it is not of it.

    In a text column, a value that is not a text stands as JSON.
    """
    if type == "bool":
        return value if isinstance(value, bool) else None
    if type in ("int", "float"):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        if type == "float":
            return float(value) if abs(value) <= sys.float_info.max else None
        return int(value) if value == int(value) else None
    if value is None:
        return None
    if is_list(type):
        return tuple(typed(item, item_of(type)) for item in value) if isinstance(value, list) else None
    if is_record(type):
        fields = fields_of(type) or {}
        if not isinstance(value, dict):
            return None
        return Record({name: typed(part, fields.get(name, "unknown")) for name, part in value.items()})
    if type == "unknown":
        return frozen(value)
    return _encodable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def spelt_in(text: str, type: str) -> Value:
    """The value of a type that a JSON text spells; None where it spells none, or one that is too large."""
    try:
        return typed(record(text), type)
    except (ValueError, RecursionError):
        return None


def record(text: str) -> JsonValue:
    """The JSON document in `text`, its texts and numbers such that it can be written again.

    Raises ValueError or RecursionError where the text is no JSON, or a number in it is too large.
    """
    value: JsonValue = _writable(_loaded(text))
    return value


def _loaded(text: str) -> Any:
    return json.loads(text, parse_float=_finite, parse_int=_whole, parse_constant=_no_constant)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _whole(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits is too large")
    return int(text)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"`{name}` is no number of JSON")


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    return [_writable(item) for item in value] if isinstance(value, list) else value


def _encodable(text: str) -> str:
    """The text with `?` for each lone surrogate: JSON can spell one, but no encoding of text can hold it."""
    return text.encode("utf-8", "replace").decode()
