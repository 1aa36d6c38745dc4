"""`repeat`, `branch` and `peek`: stages that hold stages."""

from __future__ import annotations

from collections.abc import Callable

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import COLUMNS, NUMBERS, Type
from qpdsl.planner.check.conditions import warn_until
from qpdsl.planner.check.generate import warn_spent_rounds
from qpdsl.planner.names.schemas import Schema
from qpdsl.planner.names.scope import Column, made_name, stage_word, word_span
from qpdsl.planner.names.types import reader
from qpdsl.planner.names.walk import Flow, Walk
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import Chain
from qpdsl.planner.plan.ops import LogicalPlan
from qpdsl.planner.plan.options import MOST_ARMS, constant

Add = Callable[[Walk, Chain, ast.Stage], None]


def repeat(walk: Walk, stage: ast.Repeat, number: int, add: Add) -> ops.Operator:
    walk.needs_context(stage)
    walk.number(stage, "repeat", stage.limit, "the number of rounds")
    before, flow = dict(walk.scope.columns), walk.flow
    walk.rounds += 1
    body = _inside(walk, stage, stage.body, number, add)
    walk.rounds -= 1
    for name, column in before.items():
        now = walk.scope.columns[name]
        if now.type != column.type and now.maker is not None:
            message = f"each round must leave `{name}` the {column.type} that it found, not a {now.type}"
            walk.scope.error("QP209", message, (made_name(now.maker) or now.maker).span)
        if now.schema != column.schema and not flow.fresh:  # there may be no round at all
            walk.scope.columns[name] = Column(now.type, now.maker)
    runs = True
    if stage.until is not None:
        typer = reader(walk.scope, stage, "aggregates", "`until`", stage.span.end)
        runs = typer.expect(stage.until, "bool", "a bool") == "bool" and warn_until(walk, stage, stage.until, flow)
    warn_spent_rounds(walk, stage, flow)
    walk.change(fresh=walk.flow.fresh and flow.fresh, spent=walk.flow.spent if runs or flow.spent else None)
    return ops.Repeat(stage.limit, stage.until, body, stage=number, span=stage.span)


def branch(walk: Walk, stage: ast.Branch, number: int, add: Add) -> ops.Operator:
    scope = walk.scope
    if len(stage.arms) > MOST_ARMS:
        message = f"`branch` has at most {MOST_ARMS} arms, found {len(stage.arms)}"
        scope.error("QP301", message, word_span(stage), "too many")
    before, flow = dict(scope.columns), walk.flow
    plans, columns, flows = [], [], []
    for arm in stage.arms:
        scope.columns, walk.flow = dict(before), flow
        plans.append(_inside(walk, stage, arm, number, add))
        columns.append(scope.columns)
        flows.append(walk.flow)
    scope.columns = _united(walk, columns)
    walk.flow = _joined(flow, flows)
    return ops.Branch(tuple(plans), stage=number, span=stage.span)


def peek(walk: Walk, stage: ast.Peek, number: int, add: Add) -> ops.Operator:
    walk.needs_context(stage)
    before, flow = dict(walk.scope.columns), walk.flow
    _check_one_to_one(walk, stage.body)
    body = _inside(walk, stage, stage.body, number, add)
    made = {name: column for name, column in walk.scope.columns.items() if name not in COLUMNS}
    walk.scope.columns = {**{name: column for name, column in before.items() if name not in made}, **made}
    walk.flow = flow
    return ops.Peek(body, stage=number, span=stage.span)


def _check_one_to_one(walk: Walk, stages: tuple[ast.Stage, ...]) -> None:
    """Reports the stages of a `peek` that would not make one row of each."""
    for stage in stages:
        match stage:
            case ast.Repeat(body=body):
                _check_one_to_one(walk, body)
            case ast.Generate(n=n) if n is not None and getattr(constant(n), "value", None) != 1:
                message = "`peek` gives each row back, so a `generate` in it makes one sample"
                walk.scope.error("QP236", message, n.span, "more than one row", help="leave `n` out")
            case ast.Generate() | ast.Score() | ast.Extract() | ast.Peek() | ast.Return():
                pass
            case _:
                message = f"`peek` gives each row back, so `{stage_word(stage)}` cannot stand in it"
                help = "use `generate`, `score`, `extract` and `repeat` in it"
                walk.scope.error("QP236", message, word_span(stage), "the rows would not come back", help=help)


def _inside(walk: Walk, stage: ast.Stage, stages: tuple[ast.Stage, ...], number: int, add: Add) -> LogicalPlan:
    chain = Chain(ops.Start(stage=number, span=stage.span), walk.scope.types())
    for inner in stages:
        if isinstance(inner, ast.Return):
            message = f"`return` cannot stand inside `{stage_word(stage)}`"
            walk.scope.error("QP217", message, word_span(inner))
        add(walk, chain, inner)
    return chain.done()


def _united(walk: Walk, arms: list[dict[str, Column]]) -> dict[str, Column]:
    """The columns of all arms; one that an arm does not make is none there."""
    united: dict[str, Column] = {}
    for name in dict.fromkeys(name for arm in arms for name in arm):
        found = [arm[name] for arm in arms if name in arm]
        type_: Type = found[0].type
        for column in found[1:]:
            type_ = _common(walk, name, type_, found[0], column)
        schemas: list[Schema | None] = [column.schema for column in found]
        united[name] = Column(type_, found[0].maker, schemas[0] if len(set(schemas)) == 1 else None)
    return united


def _common(walk: Walk, name: str, type_: Type, first: Column, column: Column) -> Type:
    if type_ == column.type or "unknown" in (type_, column.type):
        return type_ if column.type != "unknown" else "unknown"
    if {type_, column.type} <= NUMBERS:
        return "float"
    places = [_place(made) for made in (first, column)]
    message = f"`{name}` is {type_} in one arm and {column.type} in another"
    if places[1] is None or places[0] is None:
        span = places[1] or places[0]
        assert span is not None
        walk.scope.error("QP230", message, span, "another type than in the rows that came in")
    else:
        why = (Label(places[0], f"here it is {type_}"),)
        walk.scope.error("QP230", message, places[1], f"here it is {column.type}", secondary=why)
    return "unknown"


def _place(column: Column) -> Span | None:
    return (made_name(column.maker) or column.maker).span if column.maker else None


def _joined(before: Flow, arms: list[Flow]) -> Flow:
    """What holds of the rows of all arms."""
    if not arms:
        return before
    kinds = {flow.kind for flow in arms if flow.kind is not None}
    spent = all(flow.spent is not None for flow in arms)
    return Flow(
        context=before.context or next((flow.context for flow in arms if flow.context is not None), None),
        kind=kinds.pop() if len(kinds) == 1 else "either" if kinds else None,
        generated=any(flow.generated for flow in arms),
        fresh=all(flow.fresh for flow in arms),
        spent=arms[0].spent if spent else None,
        filtered=all(flow.filtered for flow in arms),
    )
