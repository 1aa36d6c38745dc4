"""The `extract` operator: a column out of a row's text, by a regex or a JSON path."""

from __future__ import annotations

from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.executor.runtime.operators.json_documents import typed, value_at
from qpdsl.grammar import ast
from qpdsl.grammar.literals.matcher import matcher
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Value


async def extract(op: ops.Extract, rows: Candidates, instance: Instance) -> Candidates:
    """Sets the column in each row. It is None where nothing matches, or where constrained output was cut off."""
    return tuple(row.with_column(op.column, _extracted(op, row)) for row in rows)


def _extracted(op: ops.Extract, row: Row) -> Value:
    if row.generated.incomplete:
        return None
    text = row.generated.text
    if isinstance(op.pattern, ast.JsonPath):
        return typed(value_at(op.pattern.steps, text), op.type)
    pattern = matcher(op.pattern.pattern)
    match = pattern.search(text)
    if match is None:
        return None
    # A group that took no part in the match is None.
    return match.group if pattern.grouped else match.text
