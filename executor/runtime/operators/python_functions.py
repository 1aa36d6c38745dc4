"""Scores and columns that registered Python functions compute; equal content is shown to a function once."""

from __future__ import annotations

import json
from collections.abc import Mapping

from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.functions import FunctionError, PythonFunction
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Value


async def python_score(op: ops.PythonScore, rows: Candidates, instance: Instance) -> Candidates:
    """Raises RowError where the function fails or gives no number."""
    values = await _call(op.function, rows, instance)
    scores = [round(float(value), SCORE_DIGITS) if isinstance(value, (int, float)) else None for value in values]
    return tuple(row.with_column(op.into, score) for row, score in zip(rows, scores, strict=True))


async def python_extract(op: ops.PythonExtract, rows: Candidates, instance: Instance) -> Candidates:
    """The column is None where constrained output was cut off; the function does not see such a row.

    Raises RowError where the function fails or gives a value that is not of its type.
    """
    complete = tuple(row for row in rows if not row.generated.incomplete)
    values = iter(await _call(op.function, complete, instance))
    return tuple(row.with_column(op.column, None if row.generated.incomplete else next(values)) for row in rows)


async def _call(name: str, rows: Candidates, instance: Instance) -> list[Value]:
    """The function's value for each row."""
    function = instance.services.functions.get(name)
    if function is None:
        raise RowError(f"no Python function `{name}` is registered")
    inputs = [_inputs(function, row) for row in rows]
    keys = [(name, json.dumps(arguments, sort_keys=True)) for arguments in inputs]
    async with instance.scoring(name):
        new = {key: arguments for key, arguments in zip(keys, inputs, strict=True) if key not in instance.judged}
        if new:
            try:
                values = await function(list(new.values()))
            except FunctionError as error:
                raise RowError(str(error)) from error
            instance.judged.update(zip(new, values, strict=True))
    return [instance.judged[key] for key in keys]


def _inputs(function: PythonFunction, row: Row) -> Mapping[str, object]:
    """What the function asks for by the names of its parameters."""
    inputs = {
        "text": row.generated.text,
        "problem": "" if row.context is None else row.context.problem,
        "row": dict(row.columns),
    }
    return {name: value for name, value in inputs.items() if name in function.inputs}
