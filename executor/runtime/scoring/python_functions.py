"""Scores and columns that registered Python functions compute.

A function of single rows is shown equal content once. One that compares rows is shown all rows of the stage, in their
order and in one call, every time: each value may depend on the other rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from qpdsl.executor.runtime.instance.candidates import Candidates
from qpdsl.executor.runtime.instance.functions import FunctionError, PythonFunction
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.executor.runtime.scoring.score import scored_texts
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.planner.plan import ops
from qpdsl.planner.values.value import Value, thawed

_Inputs = Mapping[str, object]


async def python_score(op: ops.PythonScore, rows: Candidates, instance: Instance) -> Candidates:
    """The score is None where the row's problem or text is none and the function asks for it; it sees no such row.

    Raises RowError where the function fails or gives no number.
    """
    function = _function(op.function, instance)
    problems = instance.problems(rows, op.given)
    shown = _inputs(op, function, rows, problems, scored_texts(op.of, rows, instance))
    values = iter(await _call(op, function, [inputs for inputs in shown if inputs is not None], instance))
    scores = [None if inputs is None else _rounded(next(values)) for inputs in shown]
    return tuple(row.with_column(op.made, score) for row, score in zip(rows, scores, strict=True))


def _rounded(value: Value) -> float | None:
    return round(float(value), SCORE_DIGITS) if isinstance(value, (int, float)) else None


async def python_extract(op: ops.PythonExtract, rows: Candidates, instance: Instance) -> Candidates:
    """The column is None where the text is none or was cut off under a constraint; the function sees no such row.

    Raises RowError where the function fails or gives a value that is not of its type.
    """
    function, shown = _function(op.function, instance), list[_Inputs | None]()
    if op.columns is None:
        shown = _inputs(op, function, rows, instance.problems(rows, None), scored_texts(op.of, rows, instance))
        if op.of is None:
            shown = [None if row.generated.incomplete else one for row, one in zip(rows, shown, strict=True)]
    else:
        given = {column.name: instance.values(column.value, rows) for column in op.columns}
        shown = [{name: thawed(values[at]) for name, values in given.items()} for at in range(len(rows))]
    values = iter(await _call(op, function, [inputs for inputs in shown if inputs is not None], instance))
    made = [None if inputs is None else next(values) for inputs in shown]
    return tuple(row.with_column(op.column.id, value) for row, value in zip(rows, made, strict=True))


def _function(name: str, instance: Instance) -> PythonFunction:
    function = instance.services.functions.get(name)
    if function is None:
        raise RowError(f"no Python function `{name}` is registered")
    return function


async def _call(
    op: ops.PythonScore | ops.PythonExtract, function: PythonFunction, shown: Sequence[_Inputs], instance: Instance
) -> list[Value]:
    """The function's value for each of the inputs."""
    given = {name: thawed(instance.option(value)) for name, value in op.arguments}
    async with instance.scoring(function.name):
        if function.compares:
            return await _values(function, shown, given, instance) if shown else []
        keys = [(function.name, json.dumps(inputs, sort_keys=True, default=str)) for inputs in shown]
        new = {key: inputs for key, inputs in zip(keys, shown, strict=True) if key not in instance.judged}
        if new:
            values = await _values(function, list(new.values()), given, instance)
            instance.judged.update(zip(new, values, strict=True))
    return [instance.judged[key] for key in keys]


async def _values(
    function: PythonFunction, shown: Sequence[_Inputs], given: _Inputs, instance: Instance
) -> list[Value]:
    try:
        return await function(shown, instance.clock, given)
    except FunctionError as error:
        raise RowError(str(error)) from error


def _inputs(
    op: ops.PythonScore | ops.PythonExtract,
    function: PythonFunction,
    rows: Candidates,
    problems: Sequence[str | None],
    texts: Sequence[str | None],
) -> list[_Inputs | None]:
    """What the function is shown of each row; None where a problem or text that it asks for is none."""
    usual, shown = function.inputs((*op.asks, *dict(op.arguments))), list[_Inputs | None]()
    for row, problem, text in zip(rows, problems, texts, strict=True):
        inputs: dict[str, object] = {"text": text, "problem": problem}
        if "row" in usual:
            inputs["row"] = {name: thawed(value) for name, value in row.columns.items()}
        inputs = {name: value for name, value in inputs.items() if name in usual}
        missing = None in inputs.values()
        inputs.update({name: thawed(row.columns.get(name)) for name in op.asks})
        shown.append(None if missing else inputs)
    return shown
