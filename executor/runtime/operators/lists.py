"""Many rows to one, and one row to many: `join`, and the copies that `each` runs its stages on."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, check_rows
from qpdsl.executor.runtime.operators.json_documents import typed, value_at
from qpdsl.executor.runtime.operators.relational import grouped
from qpdsl.grammar import ast
from qpdsl.grammar.words import ROW_NUMBER
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate_each
from qpdsl.planner.values.value import Value, format_value, frozen


async def join(op: ops.Join, rows: Candidates, instance: Instance) -> Candidates:
    """The first row of each group, with the texts of the group's values put together; rows are numbered from 1 in it.

    Aggregates in the expression look at all rows of the stage.
    """
    groups = grouped(rows, op.per)
    numbers = {index: number for group in groups for number, index in enumerate(group, 1)}
    scopes = [{**instance.scope(row), ROW_NUMBER: numbers[index]} for index, row in enumerate(rows)]
    values = evaluate_each(op.value, scopes, instance.draw(rows))
    between = "\n" if op.sep is None else format_value(instance.option(op.sep))
    joined = []
    for group in groups:
        texts = [format_value(values[index]) for index in group if values[index] is not None]
        joined.append(rows[group[0]].with_column(op.column.id, between.join(texts)))
    return tuple(joined)


def each_element(op: ops.Each, rows: Candidates, instance: Instance) -> Candidates:
    """A copy of each row for every element of its list, with the element in a column and its index in the path."""
    if isinstance(op.source, ast.JsonPath):
        lists = [_list_at(op, row) for row in rows]
    else:
        lists = [value if isinstance(value, tuple) else () for value in instance.values(op.source, rows)]
    check_rows(sum(map(len, lists)))
    return tuple(
        replace(row, path=(*row.path, index), columns={**row.columns, op.column.id: element})
        for row, elements in zip(rows, lists, strict=True)
        for index, element in enumerate(elements)
    )


def _list_at(op: ops.Each, row: Row) -> tuple[Value, ...]:
    """The elements of the list at the path in the row's text; none of constrained output that was cut off."""
    if row.generated.incomplete or not isinstance(op.source, ast.JsonPath):
        return ()
    found = value_at(op.source.steps, row.generated.text)
    if not isinstance(found, list):
        return ()
    return tuple(frozen(item) if op.type == "unknown" else typed(item, op.type) for item in found)
