"""The `extract` operators: a column out of a row's text.

MERGED: Columns that Python functions give, and the score that a row brings with it: its log-probability.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.functions import FunctionError, PythonFunction
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Value, compiled


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


async def log_prob(op: ops.LogProb, rows: Candidates, instance: Instance) -> Candidates:
    return tuple(row.with_column(op.into, _log_prob(op, row)) for row in rows)


def _log_prob(op: ops.LogProb, row: Row) -> float | None:
    if op.reduce == "sum":
        return round(row.generated.logprob, SCORE_DIGITS)
    return round(row.generated.logprob / row.generated.sampled, SCORE_DIGITS) if row.generated.sampled else None


async def python_score(op: ops.PythonScore, rows: Candidates, instance: Instance) -> Candidates:
    """Raises RowError where the function fails or gives no number."""
    values = await _given(op.function, rows, instance)
    scores = [round(float(value), SCORE_DIGITS) if isinstance(value, (int, float)) else None for value in values]
    return tuple(row.with_column(op.into, score) for row, score in zip(rows, scores, strict=True))


async def python_extract(op: ops.PythonExtract, rows: Candidates, instance: Instance) -> Candidates:
    """Raises RowError where the function fails or gives what is not of its type."""
    whole = tuple(row for row in rows if not row.generated.incomplete)
    values = iter(await _given(op.function, whole, instance))
    return tuple(row.with_column(op.column, None if row.generated.incomplete else next(values)) for row in rows)


async def _given(name: str, rows: Candidates, instance: Instance) -> list[Value]:
    """What the function gives for each row; equal content is shown to it once."""
    function = instance.services.functions.get(name)
    if function is None:
        raise RowError(f"no Python function `{name}` is registered")
    shown = [_shown(function, row) for row in rows]
    keys = [(name, json.dumps(each, sort_keys=True)) for each in shown]
    async with instance.scoring(name):
        new = {key: each for key, each in zip(keys, shown, strict=True) if key not in instance.judged}
        if new:
            try:
                values = await function(list(new.values()))
            except FunctionError as error:
                raise RowError(str(error)) from error
            instance.judged.update(zip(new, values, strict=True))
    return [instance.judged[key] for key in keys]


def _shown(function: PythonFunction, row: Row) -> Mapping[str, object]:
    inputs = {
        "text": row.generated.text,
        "problem": "" if row.context is None else row.context.problem,
        "row": dict(row.columns),
    }
    return {name: value for name, value in inputs.items() if name in function.inputs}
