"""Stages to operators: each stage is checked and its operators are appended to the plan."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.grammar.words import NUMBERS, ROW_NUMBER
from qpdsl.planner.check.binder import Binder
from qpdsl.planner.check.blocks import ask, branch, each, if_, peek, repeat, search
from qpdsl.planner.check.call import add_call
from qpdsl.planner.check.conditions import check_weight, warn_per, warn_same_key, warn_where
from qpdsl.planner.check.context import prefill, say, set_context
from qpdsl.planner.check.generate import generate
from qpdsl.planner.check.score import extract, score, tournament
from qpdsl.planner.names.scope import BoundColumn, word_span
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
    for part in prefill(stage):
        op = _operator(binder, part, binder.next_stage())
        if op is not None:
            plan.add(op, binder.scope.types())


def _operator(binder: Binder, stage: ast.Stage, number: int) -> ops.Operator | None:
    match stage:
        case ast.Prompt() | ast.Chat():
            return set_context(binder, stage, number)
        case ast.Say():
            return say(binder, stage, number)
        case ast.Generate():
            return generate(binder, stage, number)
        case ast.Score():
            return score(binder, stage, number)
        case ast.Extract():
            return extract(binder, stage, number)
        case ast.Let():
            return _let(binder, stage, number)
        case ast.Where():
            return _where(binder, stage, number)
        case ast.Keep():
            return _keep(binder, stage, number)
        case ast.Best():
            return _best(binder, stage, number)
        case ast.Distinct():
            return _distinct(binder, stage, number)
        case ast.Order():
            return _order(binder, stage, number)
        case ast.Join():
            return _join(binder, stage, number)
        case ast.Vote():
            return _vote(binder, stage, number)
        case ast.Split():
            return _split(binder, stage, number)
        case ast.Repeat():
            return repeat(binder, stage, number)
        case ast.Branch():
            return branch(binder, stage, number)
        case ast.If():
            return if_(binder, stage, number)
        case ast.Each():
            return each(binder, stage, number)
        case ast.Search():
            return search(binder, stage, number)
        case ast.Peek():
            return peek(binder, stage, number)
        case ast.Ask():
            return ask(binder, stage, number)
    return None


def _let(binder: Binder, stage: ast.Let, number: int) -> ops.Operator:
    type_ = Typer(binder.scope, stage, "row", upto=stage.value.span.end).type(stage.value)
    # What begins as none may be anything later.
    binder.make(stage, stage.column, "unknown" if type_ == "none" else type_)
    return ops.Let(stage.column.id, stage.value, stage=number, span=stage.span)


def _where(binder: Binder, stage: ast.Where, number: int) -> ops.Operator:
    if not _reads_parameters(binder, stage.condition):
        binder.needs_rows(stage, stage.condition)
    if Typer(binder.scope, stage, "row").expect(stage.condition, "bool", "a bool") == "bool":
        warn_where(binder, stage.condition)
    binder.change(filtered=True)
    return ops.Where(stage.condition, stage=number, span=stage.span)


def _reads_parameters(binder: Binder, condition: ast.Expr) -> bool:
    """Whether a condition is about the program's arguments, so that it holds for all rows or for none."""
    read = {name.id for name in names(condition)}
    return bool(read) and read <= binder.scope.params.keys() - binder.scope.columns.keys()


def _keep(binder: Binder, stage: ast.Keep, number: int) -> ops.Operator:
    binder.needs_rows(stage, stage.by, stage.per)
    binder.number(stage, "keep", stage.count, "the number of rows to keep")
    _check_key(binder, stage, stage.by, "`by`")
    per = _per(binder, stage, stage.per)
    like = binder.program.like
    return ops.TopK(stage.count, stage.by, per, like.system if like else None, stage=number, span=stage.span)


def _best(binder: Binder, stage: ast.Best, number: int) -> ops.Operator:
    if isinstance(stage.by, ast.Compare):
        return tournament(binder, stage, stage.by, _per(binder, stage, stage.per), number)
    binder.needs_rows(stage, stage.by, stage.per)
    _check_key(binder, stage, stage.by, "`by`")
    count = ast.Literal(1, span=word_span(stage))
    return ops.TopK(count, stage.by, _per(binder, stage, stage.per), stage=number, span=stage.span)


def _distinct(binder: Binder, stage: ast.Distinct, number: int) -> ops.Operator:
    binder.needs_rows(stage, stage.by, stage.per)
    Typer(binder.scope, stage, "row", "`by`").type(stage.by)
    return ops.Distinct(stage.by, _per(binder, stage, stage.per), stage=number, span=stage.span)


def _order(binder: Binder, stage: ast.Order, number: int) -> ops.Operator:
    binder.needs_rows(stage, stage.by)
    Typer(binder.scope, stage, "row", "`by`").expect(stage.by, _SORTABLE | {"text"}, "a number, a bool or a text")
    return ops.Order(stage.by, stage=number, span=stage.span)


def _join(binder: Binder, stage: ast.Join, number: int) -> ops.Operator:
    binder.needs_rows(stage, stage.value, stage.per)
    scope, column = binder.scope, binder.scope.columns.pop(ROW_NUMBER, None)
    reads = [name for name in names(stage.value) if name.id == ROW_NUMBER]
    if reads and (column is not None or ROW_NUMBER in scope.params):
        message = f"in `join` the name `{ROW_NUMBER}` is the row's number, and it is a {_what(column)} too"
        scope.error("QP320", message, reads[0].span, "which one?", help=f"give the {_what(column)} another name")
    scope.columns[ROW_NUMBER] = BoundColumn("int")
    Typer(scope, stage, "row", "`join`").type(stage.value)
    del scope.columns[ROW_NUMBER]
    if column is not None:
        scope.columns[ROW_NUMBER] = column
    sep: ast.Expr = ast.Template(("\n",), span=word_span(stage))
    if stage.sep is not None:
        binder.expect(stage, "`sep`", stage.sep, "text", "a text")
        sep = stage.sep
    per = _per(binder, stage, stage.per)
    binder.make(stage, stage.column, "text")
    return ops.Join(stage.column.id, stage.value, sep, per, stage=number, span=stage.span)


def _what(column: BoundColumn | None) -> str:
    return "parameter" if column is None else "column"


def _per(binder: Binder, stage: ast.Stage, per: ast.Name | None) -> str | None:
    """The column of a `per`, which is checked."""
    if per is None:
        return None
    _check_column(binder, stage, per, "`per`")
    warn_per(binder, per)
    return per.id


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
    per = _per(binder, stage, stage.per)
    return ops.Split(stage.count, stage.by, stage.temperature, per, stage=number, span=stage.span)


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
    per = _per(binder, stage, stage.per)
    if stage.decided is not None:
        binder.number(stage, "decided", stage.decided, "`decided`", "float")
        if stage.weight is not None:
            message = "`decided` counts votes, and this vote weighs them"
            binder.scope.error("QP251", message, stage.decided.span, "not of weights", help="leave one of them out")
            return ops.Vote(stage.column.id, stage.weight, stage.equal, per=per, stage=number, span=stage.span)
    return ops.Vote(stage.column.id, stage.weight, stage.equal, stage.decided, per, stage=number, span=stage.span)


def _check_column(binder: Binder, stage: ast.Stage, name: ast.Name, place: str) -> None:
    scope = binder.scope
    if name.id in scope.params and name.id not in scope.columns:
        scope.error("QP203", f"{place} takes a column, but `{name.id}` is a parameter", name.span)
    else:
        scope.column(name, stage, role="answer" if place == "`vote`" else None)


def _check_key(binder: Binder, stage: ast.Stage, expr: ast.Expr, place: str) -> None:
    Typer(binder.scope, stage, "row", place).expect(expr, _SORTABLE, "a number or a bool")
    warn_same_key(binder, expr, place)
