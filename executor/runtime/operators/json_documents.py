"""Values out of JSON texts: one value at a path for `extract`, the whole record for `return`."""

from __future__ import annotations

import json
import math
from typing import Any

from qpdsl.executor.runtime.instance.candidates import JsonValue
from qpdsl.planner.plan.evaluate import Value


def value_at(steps: tuple[str | int, ...], text: str) -> object:
    """The value at a path of the JSON document in `text`, None where there is no document or no such path."""
    try:
        value: object = json.loads(text)
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
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return None
        if type == "float":
            return float(value)
        return int(value) if value == int(value) else None
    if value is None:
        return None
    return _encodable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def record(text: str) -> JsonValue:
    """The JSON document in `text`, its texts and numbers such that it can be written again.

    Raises ValueError or RecursionError where the text is no JSON, or a number in it is too large.
    """
    value: JsonValue = _writable(json.loads(text, parse_float=_finite))
    return value


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text} is too large")
    return number


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    return [_writable(item) for item in value] if isinstance(value, list) else value


def _encodable(text: str) -> str:
    """The text with `?` for each lone surrogate: JSON can spell one, but no encoding of text can hold it."""
    return text.encode("utf-8", "replace").decode()
