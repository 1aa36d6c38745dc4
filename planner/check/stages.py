"""Stages to operators: each stage is checked and its operators are appended to the plan."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.grammar.words import NUMBERS
from qpdsl.planner.check.binder import Binder
from qpdsl.planner.check.blocks import branch, peek, repeat
from qpdsl.planner.check.call import add_call
from qpdsl.planner.check.conditions import check_weight, warn_per, warn_where
from qpdsl.planner.check.context import set_context
from qpdsl.planner.check.generate import generate
from qpdsl.planner.check.score import extract, score
from qpdsl.planner.names.scope import word_span
from qpdsl.planner.names.types import Typer
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import PlanBuilder
from qpdsl.planner.plan.reads import names

_SORTABLE = NUMBERS | {"bool"}
_COMPARABLE = {"text": None, "number": NUMBERS | {"text"}, "math": NUMBERS | {"text"}}


def add_stage(binder: Binder, plan: PlanBuilder, stage: ast.Stage) -> None:
    """Appends the operators of a stage to the plan, which is usable only where no error was reported."""
    if isinstance(stage, ast.Call):
        add_call(binder, plan, stage)
        return
    op = _operator(binder, stage, binder.next_stage())
    if op is not None:
        plan.add(op, binder.scope.types())


def _operator(binder: Binder, stage: ast.Stage, number: int) -> ops.Operator | None:
    match stage:
        case ast.Prompt() | ast.Chat():
            return set_context(binder, stage, number)
        case ast.Generate():
            return generate(binder, stage, number)
        case ast.Score():
            return score(binder, stage, number)
        case ast.Extract():
            return extract(binder, stage, number)
        case ast.Where():
            return _where(binder, stage, number)
        case ast.Keep():
            return _keep(binder, stage, number)
        case ast.Best():
            return _best(binder, stage, number)
        case ast.Vote():
            return _vote(binder, stage, number)
        case ast.Split():
            return _split(binder, stage, number)
        case ast.Repeat():
            return repeat(binder, stage, number)
        case ast.Branch():
            return branch(binder, stage, number)
        case ast.Peek():
            return peek(binder, stage, number)
    return None


def _where(binder: Binder, stage: ast.Where, number: int) -> ops.Operator:
    binder.needs_rows(stage, stage.condition)
    if Typer(binder.scope, stage, "row").expect(stage.condition, "bool", "a bool") == "bool":
        warn_where(binder, stage.condition)
    looks_at_ends = any(name.id in ("finish", "finished") for name in names(stage.condition))
    binder.change(filtered=True, cut=None if looks_at_ends else binder.flow.cut)
    return ops.Where(stage.condition, stage=number, span=stage.span)


def _keep(binder: Binder, stage: ast.Keep, number: int) -> ops.Operator:
    binder.needs_rows(stage, stage.by, stage.per)
    binder.number(stage, "keep", stage.count, "the number of rows to keep")
    _check_key(binder, stage, stage.by, "`by`")
    if stage.per is not None:
        _check_column(binder, stage, stage.per, "`per`")
        warn_per(binder, stage.per)
    per = stage.per.id if stage.per else None
    like = binder.program.like
    return ops.TopK(stage.count, stage.by, per, like.system if like else None, stage=number, span=stage.span)


def _best(binder: Binder, stage: ast.Best, number: int) -> ops.Operator:
    binder.needs_rows(stage, stage.by)
    _check_key(binder, stage, stage.by, "`by`")
    count = ast.Literal(1, span=word_span(stage))
    return ops.TopK(count, stage.by, stage=number, span=stage.span)


def _split(binder: Binder, stage: ast.Split, number: int) -> ops.Operator:
    binder.needs_context(stage)
    if stage.by is None:
        binder.number(stage, "split", stage.count, "the number of groups")
        if stage.temperature is not None:
            help = "write `split N by EXPR temperature=T`"
            message = "`temperature` shares rows out by a value, and this `split` has none"
            binder.scope.error("QP116", message, stage.temperature.span, "without `by`", help=help)
        return ops.Split(stage.count, stage=number, span=stage.span)
    binder.number(stage, "split", stage.count, "the number of rows")
    _check_key(binder, stage, stage.by, "`by`")
    if stage.temperature is not None:
        binder.number(stage, "split temperature", stage.temperature, "`temperature`", "float")
    return ops.Split(stage.count, stage.by, stage.temperature, stage=number, span=stage.span)


def _vote(binder: Binder, stage: ast.Vote, number: int) -> ops.Operator:
    binder.needs_rows(stage, stage.column, stage.weight)
    _check_column(binder, stage, stage.column, "`vote`")
    column = binder.scope.columns.get(stage.column.id)
    comparable = _COMPARABLE[stage.equal]
    if column is not None and comparable is not None and column.type not in comparable | {"unknown"}:
        message = f"`equal={stage.equal}` compares numbers, but `{stage.column.id}` is {column.type}"
        binder.scope.error("QP209", message, stage.column.span, f"this is {column.type}", help="leave `equal` out")
    if stage.weight is not None:
        _check_key(binder, stage, stage.weight, "`weight`")
        check_weight(binder, stage.weight)
    return ops.Vote(stage.column.id, stage.weight, stage.equal, stage=number, span=stage.span)


def _check_column(binder: Binder, stage: ast.Stage, name: ast.Name, place: str) -> None:
    scope = binder.scope
    if name.id in scope.params and name.id not in scope.columns:
        scope.error("QP203", f"{place} takes a column, but `{name.id}` is a parameter", name.span)
    else:
        scope.column(name, stage, role="answer" if place == "`vote`" else None)


def _check_key(binder: Binder, stage: ast.Stage, expr: ast.Expr, place: str) -> None:
    Typer(binder.scope, stage, "row", place).expect(expr, _SORTABLE, "a number or a bool")
