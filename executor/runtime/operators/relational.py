"""Operators over the columns alone: `where`, `keep`, and the value that `return` reads."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.executor.runtime.instance.candidates import Candidates, JsonValue, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.executor.runtime.operators.json_documents import record
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Value, evaluate, evaluate_rows
from qpdsl.planner.plan.reads import names


async def where(op: ops.Where, rows: Candidates, instance: Instance) -> Candidates:
    """The rows whose condition is true; None is not."""
    return tuple(row for row in rows if evaluate(op.condition, instance.scope(row)))


async def top_k(op: ops.TopK, rows: Candidates, instance: Instance) -> Candidates:
    """The `k` best rows of each group, groups in the order first seen. Raises RowError.

    With `like`, as search-and-learn does it: the rows kept stay in their order, and a group whose best row is at its
    end is kept whole and closed.
    """
    k = instance.whole("keep", op.k)
    groups: dict[Value, list[Row]] = {}
    for row in rows:
        groups.setdefault(None if op.per is None else row.columns.get(op.per), []).append(row)
    kept: list[Row] = []
    for group in groups.values():
        ranked = [(evaluate(op.by, instance.scope(row)), number, row) for number, row in enumerate(group)]
        # Python's sort is stable, so that ties stay in row order; a row without a value sorts after all others.
        ranked.sort(key=lambda entry: sort_key(entry[0]), reverse=True)
        best = ranked[:k]
        if op.like is not None:
            best.sort(key=lambda entry: entry[1])
        if op.like is not None and op.per is not None and _is_at_end(best[0][2]):
            kept += map(_closed, group)
        else:
            kept += [row for _, _, row in best]
    return tuple(kept)


def _is_at_end(row: Row) -> bool:
    """Whether search-and-learn follows the row no further."""
    return row.generated.finished or "boxed{" in row.generated.text


def _closed(row: Row) -> Row:
    """The row as one that nothing is added to any more, wherever it stopped."""
    generated = replace(row.generated, finished=True, closed=True)
    return replace(row, columns={**row.columns, "finished": True}, generated=generated)


def return_value(op: ops.Return, rows: Candidates, instance: Instance) -> JsonValue:
    """The value of the program over its last rows, or the record in it. Raises RowError where there is none."""
    if not rows:
        raise RowError(": ".join(["no row is left", *instance.emptied[-1:]]))
    if op.parse and rows[0].generated.invalid is not None:
        raise RowError(f"the record breaks its schema, though llguidance let it through: {rows[0].generated.invalid}")
    if op.parse and rows[0].generated.incomplete:
        raise RowError("the output was cut off before the record in it was whole; `max_tokens` or the context is short")
    value = evaluate_rows(op.value, [instance.scope(row) for row in rows], instance.arguments)
    if value is None:
        raise RowError("no row has a value to return")
    if not op.parse:
        return value
    try:
        return record(str(value))
    except (ValueError, RecursionError) as error:
        raise RowError(f"what is to be returned is no JSON: {error}") from error


def why_none(op: ops.Operator) -> str:
    """Why an operator left none of its rows, in words for the user."""
    match op:
        case ops.Where(condition=condition):
            read = ", ".join(dict.fromkeys(f"`{name.id}`" for name in names(condition)))
            return f"`where` held for none of the rows{f', by {read}' if read else ''}"
        case ops.Vote(column=column, weight=weight):
            either = f"`{column}`" if weight is None else f"`{column}` or its weight"
            return f"`vote {column}` found no answer, since {either} is none in each row"
    return "no arm of the `branch` left one"


def sort_key(value: Value) -> tuple[bool, float]:
    """Whether the value is a number (NaN is none), and the number, 0 where it is none: no number sorts below all."""
    return (True, value) if isinstance(value, (int, float)) and value == value else (False, 0)
