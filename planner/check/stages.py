"""Stages to operators, checked one by one as they are read."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.grammar.words import NUMBERS
from qpdsl.planner.check.blocks import branch, peek, repeat
from qpdsl.planner.check.call import inline
from qpdsl.planner.check.conditions import warn_per, warn_where
from qpdsl.planner.check.generate import generate, set_context
from qpdsl.planner.check.score import extract, score
from qpdsl.planner.names.scope import word_span
from qpdsl.planner.names.types import reader
from qpdsl.planner.names.walk import Walk
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import Chain

_SORTABLE = NUMBERS | {"bool"}
_COMPARED = {"text": None, "number": NUMBERS | {"text"}, "math": NUMBERS | {"text"}}


def add(walk: Walk, chain: Chain, stage: ast.Stage) -> None:
    """Puts what a stage means at the end of the plan. The plan is of use only where nothing was reported."""
    if isinstance(stage, ast.Call):
        inline(walk, chain, stage, add)
        return
    op = _operator(walk, stage, walk.next())
    if op is not None:
        chain.add(op, walk.scope.types())


def _operator(walk: Walk, stage: ast.Stage, number: int) -> ops.Operator | None:
    match stage:
        case ast.Prompt() | ast.Chat():
            return set_context(walk, stage, number)
        case ast.Generate():
            return generate(walk, stage, number)
        case ast.Score():
            return score(walk, stage, number)
        case ast.Extract():
            return extract(walk, stage, number)
        case ast.Where():
            walk.needs_rows(stage)
            if reader(walk.scope, stage, "row").expect(stage.condition, "bool", "a bool") == "bool":
                warn_where(walk, stage.condition)
            walk.change(filtered=True)
            return ops.Where(stage.condition, stage=number, span=stage.span)
        case ast.Keep():
            return _keep(walk, stage, number)
        case ast.Best():
            walk.needs_rows(stage)
            _by(walk, stage, stage.by, "`by`")
            one = ast.Literal(1, span=word_span(stage))
            return ops.TopK(one, stage.by, stage=number, span=stage.span)
        case ast.Vote():
            return _vote(walk, stage, number)
        case ast.Split():
            return _split(walk, stage, number)
        case ast.Repeat():
            return repeat(walk, stage, number, add)
        case ast.Branch():
            return branch(walk, stage, number, add)
        case ast.Peek():
            return peek(walk, stage, number, add)
    return None


def _keep(walk: Walk, stage: ast.Keep, number: int) -> ops.Operator:
    walk.needs_rows(stage)
    walk.number(stage, "keep", stage.count, "the number of rows to keep")
    _by(walk, stage, stage.by, "`by`")
    if stage.per is not None:
        _column(walk, stage, stage.per, "`per`")
        warn_per(walk, stage.per)
    per = stage.per.id if stage.per else None
    return ops.TopK(stage.count, stage.by, per, _like(walk), stage=number, span=stage.span)


def _like(walk: Walk) -> str | None:
    like = walk.calls[-1][1].like
    return None if like is None else like.system


def _split(walk: Walk, stage: ast.Split, number: int) -> ops.Operator:
    walk.needs_context(stage)
    if stage.by is None:
        walk.number(stage, "split", stage.count, "the number of groups")
        if stage.temperature is not None:
            help = "write `split N by EXPR temperature=T`"
            message = "`temperature` shares rows out by a value, and this `split` has none"
            walk.scope.error("QP116", message, stage.temperature.span, "without `by`", help=help)
        return ops.Split(stage.count, stage=number, span=stage.span)
    walk.number(stage, "split", stage.count, "the number of rows")
    _by(walk, stage, stage.by, "`by`")
    if stage.temperature is not None:
        walk.number(stage, "split temperature", stage.temperature, "`temperature`", "float")
    return ops.Split(stage.count, stage.by, stage.temperature, stage=number, span=stage.span)


def _vote(walk: Walk, stage: ast.Vote, number: int) -> ops.Operator:
    walk.needs_rows(stage)
    _column(walk, stage, stage.column, "`vote`")
    column = walk.scope.columns.get(stage.column.id)
    comparable = _COMPARED[stage.equal]
    if column is not None and comparable is not None and column.type not in comparable | {"unknown"}:
        message = f"`equal={stage.equal}` compares numbers, but `{stage.column.id}` is {column.type}"
        walk.scope.error("QP209", message, stage.column.span, f"this is {column.type}", help="leave `equal` out")
    if stage.weight is not None:
        _by(walk, stage, stage.weight, "`weight`")
    return ops.Vote(stage.column.id, stage.weight, stage.equal, stage=number, span=stage.span)


def _column(walk: Walk, stage: ast.Stage, name: ast.Name, place: str) -> None:
    scope = walk.scope
    if name.id in scope.params and name.id not in scope.columns:
        scope.error("QP203", f"{place} takes a column, but `{name.id}` is a parameter", name.span)
    else:
        scope.column(name, stage, wants="answer" if place == "`vote`" else None)


def _by(walk: Walk, stage: ast.Stage, expr: ast.Expr, place: str) -> None:
    reader(walk.scope, stage, "row", place).expect(expr, _SORTABLE, "a number or a bool")
