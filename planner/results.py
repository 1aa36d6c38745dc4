"""What a program gives back: an expression, its type, and the schema that it is held to."""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.infer import reader
from qpdsl.planner.schemas import Schema
from qpdsl.planner.scope import Type
from qpdsl.planner.walk import Walk


@dataclass(frozen=True, slots=True)
class Result:
    value: ast.Expr
    type: Type
    schema: Schema | None
    span: Span


def result(walk: Walk, stages: tuple[ast.Stage, ...], whole: Span) -> Result:
    """The result of stages that have been walked: what `return` says, else the voted column, else `text`."""
    last = next((stage for stage in stages if isinstance(stage, ast.Return)), stages[-1] if stages else None)
    columns = walk.scope.columns
    if isinstance(last, ast.Return):
        walk.needs_context(last)
        columns = walk.scope.columns
        type_ = reader(walk.scope, last, "first row").type(last.value)
        value, span = last.value, last.span
    else:
        span = last.span if last else whole
        value = ast.Name(last.column.id if isinstance(last, ast.Vote) else "text", span=span)
        type_ = columns[value.id].type if value.id in columns else "unknown"
    column = columns.get(value.id) if isinstance(value, ast.Name) else None
    return Result(value, type_, column.schema if column else None, span)
