"""The text that a scorer looks at: that of the row, or what `of` names in its place."""

from __future__ import annotations

from qpdsl.executor.runtime.instance.candidates import Candidates
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.grammar import ast
from qpdsl.planner.values.value import format_value


def scored_texts(of: ast.Expr | None, rows: Candidates, instance: Instance) -> list[str | None]:
    """The text of each row; None where the value of `of` is none."""
    if of is None:
        return [row.generated.text for row in rows]
    return [None if value is None else format_value(value) for value in instance.values(of, rows)]
