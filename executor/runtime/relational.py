"""The operators that need no model and look at no text: `where`, `keep`, `split`, and setting a column."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.executor.runtime.candidates import Candidates, Row
from qpdsl.executor.runtime.instance import Instance
from qpdsl.planner import ops
from qpdsl.planner.expr import Value, evaluate, evaluate_rows


async def where(op: ops.Where, rows: Candidates, instance: Instance) -> Candidates:
    return tuple(row for row in rows if evaluate(op.condition, instance.scope(row)))


async def top_k(op: ops.TopK, rows: Candidates, instance: Instance) -> Candidates:
    k = instance.whole("keep", op.k)
    parts: dict[Value, list[Row]] = {}
    for row in rows:
        parts.setdefault(None if op.per is None else row.columns.get(op.per), []).append(row)
    kept: list[Row] = []
    for part in parts.values():
        ranked = [(evaluate(op.by, instance.scope(row)), row) for row in part]
        # Python's sort is stable, so that ties stay in row order; a row without a value sorts after all others.
        ranked.sort(key=lambda pair: order(pair[0]), reverse=True)
        kept += [row for _, row in ranked[:k]]
    return tuple(kept)


async def split(op: ops.Split, rows: Candidates, instance: Instance) -> Candidates:
    count = instance.whole("split", op.count)
    return tuple(
        replace(row, path=(*row.path, copy), columns={**row.columns, "group": index * count + copy})
        for index, row in enumerate(rows)
        for copy in range(count)
    )


async def assign(op: ops.Assign, rows: Candidates, instance: Instance) -> Candidates:
    if not rows:
        return ()
    value = evaluate_rows(op.value, [instance.scope(row) for row in rows], instance.arguments)
    return tuple(row.with_column(op.column, value) for row in rows)


def order(value: Value) -> tuple[bool, float]:
    """A sort key: what is no number, or not a number, comes below all numbers."""
    return (True, value) if isinstance(value, (int, float)) and value == value else (False, 0)
