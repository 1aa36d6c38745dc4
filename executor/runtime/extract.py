"""The `extract` operators: a column out of a row's text."""

from __future__ import annotations

import json
import math

from qpdsl.executor.runtime.candidates import Candidates, Row
from qpdsl.executor.runtime.instance import Instance
from qpdsl.grammar import ast
from qpdsl.planner import ops
from qpdsl.planner.expr import Value, compiled


async def extract(op: ops.Extract, rows: Candidates, instance: Instance) -> Candidates:
    return tuple(row.with_column(op.column, _extracted(op, row)) for row in rows)


def _extracted(op: ops.Extract, row: Row) -> Value:
    if row.generated.incomplete:
        return None
    text = row.generated.text
    if isinstance(op.pattern, ast.JsonPath):
        return _typed(_at_path(op.pattern.steps, text), op.type)
    match = compiled(op.pattern.pattern).search(text)
    if match is None:
        return None
    found = match.group(1) if match.re.groups else match.group(0)
    return found if isinstance(found, str) else None


def _at_path(steps: tuple[str | int, ...], text: str) -> object:
    """The value at a path of the JSON document in `text`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    found: object = value
    return found


def _typed(value: object, type: str) -> Value:
    """A JSON value as a value of the column's type: where that is text, what is no text as JSON."""
    if type == "bool":
        return value if isinstance(value, bool) else None
    if type in ("int", "float"):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return None
        if type == "float":
            return float(value)
        return int(value) if value == int(value) else None
    found = value if isinstance(value, str) or value is None else json.dumps(value, ensure_ascii=False)
    # JSON can spell half a character, which no encoding of text can hold.
    return found.encode("utf-8", "replace").decode() if isinstance(found, str) else None
