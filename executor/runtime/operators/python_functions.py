"""Scores and columns that registered Python functions compute.

A function of single rows is shown equal content once. One that compares rows is shown all rows of the stage, in their
order and in one call, every time: each value may depend on the other rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.functions import FunctionError, PythonFunction
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Value

_Inputs = Mapping[str, object]


async def python_score(op: ops.PythonScore, rows: Candidates, instance: Instance) -> Candidates:
    """The score is None where the row's problem is none and the function asks for it; it does not see such a row.

    Raises RowError where the function fails or gives no number.
    """
    function = _function(op.function, instance)
    problems = [instance.problem(row, op.given) for row in rows]
    shown = [
        _inputs(function, row, problem)
        for row, problem in zip(rows, problems, strict=True)
        if problem is not None or "problem" not in function.inputs
    ]
    values = iter(await _call(function, shown, instance))
    scores = [
        None if problem is None and "problem" in function.inputs else _rounded(next(values)) for problem in problems
    ]
    return tuple(row.with_column(op.into, score) for row, score in zip(rows, scores, strict=True))


def _rounded(value: Value) -> float | None:
    return round(float(value), SCORE_DIGITS) if isinstance(value, (int, float)) else None


async def python_extract(op: ops.PythonExtract, rows: Candidates, instance: Instance) -> Candidates:
    """The column is None where constrained output was cut off; the function does not see such a row.

    Raises RowError where the function fails or gives a value that is not of its type.
    """
    function = _function(op.function, instance)
    complete = [row for row in rows if not row.generated.incomplete]
    shown = [_inputs(function, row, instance.problem(row, None)) for row in complete]
    values = iter(await _call(function, shown, instance))
    return tuple(row.with_column(op.column, None if row.generated.incomplete else next(values)) for row in rows)


def _function(name: str, instance: Instance) -> PythonFunction:
    function = instance.services.functions.get(name)
    if function is None:
        raise RowError(f"no Python function `{name}` is registered")
    return function


async def _call(function: PythonFunction, shown: Sequence[_Inputs], instance: Instance) -> list[Value]:
    """The function's value for each of the inputs."""
    async with instance.scoring(function.name):
        if function.compares:
            return await _values(function, shown, instance) if shown else []
        keys = [(function.name, json.dumps(inputs, sort_keys=True)) for inputs in shown]
        new = {key: inputs for key, inputs in zip(keys, shown, strict=True) if key not in instance.judged}
        if new:
            values = await _values(function, list(new.values()), instance)
            instance.judged.update(zip(new, values, strict=True))
    return [instance.judged[key] for key in keys]


async def _values(function: PythonFunction, shown: Sequence[_Inputs], instance: Instance) -> list[Value]:
    try:
        return await function(shown, instance.clock)
    except FunctionError as error:
        raise RowError(str(error)) from error


def _inputs(function: PythonFunction, row: Row, problem: str | None) -> _Inputs:
    """What the function asks for by the names of its parameters."""
    inputs = {"text": row.generated.text, "problem": problem, "row": dict(row.columns)}
    return {name: value for name, value in inputs.items() if name in function.inputs}
