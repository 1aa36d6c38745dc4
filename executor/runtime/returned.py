"""What a program gives back."""

from __future__ import annotations

import json
import math
from typing import Any

from qpdsl.executor.runtime.candidates import Candidates, JsonValue
from qpdsl.executor.runtime.instance import Instance, RowError
from qpdsl.planner import ops
from qpdsl.planner.expr import evaluate_rows


def returned(op: ops.Return, rows: Candidates, instance: Instance) -> JsonValue:
    """The value of the program over its last rows. Raises RowError where there is none."""
    if not rows:
        raise RowError("no row is left")
    if op.parse and rows[0].generated.incomplete:
        raise RowError("the output was cut off before the record in it was whole; `max_tokens` or the context is short")
    value = evaluate_rows(op.value, [instance.scope(row) for row in rows], instance.arguments)
    if value is None:
        raise RowError("no row has a value to return")
    if not op.parse:
        return value
    try:
        record: JsonValue = _sayable(json.loads(str(value), parse_float=_finite))
    except (ValueError, RecursionError) as error:
        raise RowError(f"what is to be returned is no JSON: {error}") from error
    return record


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text} is too large")
    return number


def _sayable(value: Any) -> Any:
    """JSON can spell half a character, which no encoding of text can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_sayable(key): _sayable(item) for key, item in value.items()}
    return [_sayable(item) for item in value] if isinstance(value, list) else value
