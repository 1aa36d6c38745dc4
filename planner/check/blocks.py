"""`repeat`, `search`, `branch`, `if`, `each`, `peek` and `ask`: stages that hold stages.

Stages to operators: each stage is checked and its operators are appended to the plan.

A stage whose class has no function of its own here is checked as its fields declare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.ast.stage import Reads
from qpdsl.grammar.ast.walk import blocks, column_name, walk, walk_stages
from qpdsl.grammar.diagnostic import Label
from qpdsl.grammar.format.unparse import format_expr
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import COLUMNS, NUMBERS, ROW_NUMBER, SEARCHED_COLUMNS, Type
from qpdsl.planner.check.binder import Binder, BoundModel, Flow, Problem
from qpdsl.planner.check.call import add_call
from qpdsl.planner.check.conditions import check_weight, warn_until, warn_where
from qpdsl.planner.check.context import prefill, problem_in_rounds, say, set_context
from qpdsl.planner.check.generate import generate, warn_spent_rounds
from qpdsl.planner.check.score import extract, item_type, score, sought_by, tournament
from qpdsl.planner.check.searches import begins_turn, check_search
from qpdsl.planner.check.tools import tool
from qpdsl.planner.names.modules import Module
from qpdsl.planner.names.schemas import CompiledSchema
from qpdsl.planner.names.scope import BoundColumn, word_span
from qpdsl.planner.names.substitute import with_draws
from qpdsl.planner.names.types import Typer
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import LogicalOp, LogicalPlan
from qpdsl.planner.plan.options import MAX_ARMS, constant
from qpdsl.planner.plan.reads import names
from qpdsl.planner.values.value import common_type, fits, is_list, item_of

# An operator, and the plans of its blocks.
Blocks = tuple[ops.Operator, tuple[LogicalPlan, ...]]


def repeat(binder: Binder, stage: ast.Repeat, number: int) -> Blocks:
    binder.check_part(stage, "limit")
    if stage.gather is not None:
        body = _block(binder, stage, stage.body)
        if stage.until is not None:
            Typer(binder.scope, stage, "aggregates", "`until`", stage.span.end).expect(stage.until, "bool", "a bool")
        return replace(stage, body=(), stage=number), (body,)
    before, flow = dict(binder.scope.columns), binder.flow
    body = _round(binder, stage)
    _warn_outdated_in_rounds(binder, stage, before)
    first_runs = True
    if stage.until is not None:
        typer = Typer(binder.scope, stage, "aggregates", "`until`", stage.span.end)
        is_bool = typer.expect(stage.until, "bool", "a bool") == "bool"
        first_runs = is_bool and warn_until(binder, stage, stage.until, flow)
    warn_spent_rounds(binder, stage, flow)
    if flow.context is None and binder.flow.context is not None:
        message = "each round of this `repeat` starts a conversation, or goes on with that of the round before"
        help = "start it before the loop, or put `ask { … }` around what every round begins anew"
        binder.scope.error("QP215", message, word_span(binder.flow.context), "a conversation begins", help=help)
    spent = binder.flow.spent if first_runs or flow.spent else None
    binder.change(fresh=binder.flow.fresh and flow.fresh, spent=spent)
    return replace(stage, body=(), stage=number), (body,)


def _round(binder: Binder, stage: ast.Repeat | ast.Search) -> LogicalPlan:
    """The body of a stage that runs it again on what it made."""
    before, flow = dict(binder.scope.columns), binder.flow
    binder.change(problem=problem_in_rounds(binder, stage.body))
    binder.rounds += 1
    body = _block(binder, stage, stage.body)
    binder.rounds -= 1
    _unite_rounds(binder, before, flow)
    return body


def _unite_rounds(binder: Binder, before: dict[str, BoundColumn], flow: Flow) -> None:
    """Reports the columns of which a round leaves another type than it found; the next one goes on with them."""
    for name, column in before.items():
        now = binder.scope.columns[name]
        if not fits(now.type, column.type) and now.maker is not None:
            message = f"each round must leave `{name}` the {column.type} that it found, not a {now.type}"
            wider = {now.type, column.type} == NUMBERS and isinstance(column.maker, ast.Let)
            first = format_expr(column.maker.value) if isinstance(column.maker, ast.Let) else ""
            first = f"{first}.0" if first.isdigit() else f"float({first})"
            help = f"begin with a float: `let {name} = {first}`" if wider else None
            binder.scope.error("QP209", message, (column_name(now.maker) or now.maker).span, help=help)
        elif now.type != column.type:
            binder.scope.columns[name] = now = replace(now, type=column.type)
        if now.schema != column.schema and not flow.fresh:  # there may be no round at all
            binder.scope.columns[name] = BoundColumn(now.type, now.maker)


def _warn_outdated_in_rounds(binder: Binder, stage: ast.Repeat, before: dict[str, BoundColumn]) -> None:
    """Warns of scores from before a loop that a round reads, and only then lets the text go on."""
    for name, column in before.items():
        now = binder.scope.columns[name]
        if now.maker is not column.maker or now.outdated is None or column.outdated is not None:
            continue
        for inner in walk_stages(stage.body):
            if inner.span.end <= now.outdated.span.start:
                for node in walk(inner):
                    if isinstance(node, ast.Name) and node.id == name:
                        binder.scope.warn_outdated(node, inner, now)


def search(binder: Binder, stage: ast.Search, number: int) -> Blocks:
    binder.needs_context(stage)
    for name in ("simulations", "c", "per_round"):
        binder.check_part(stage, name)
    flow = binder.flow
    body = _round(binder, stage)
    typer = Typer(binder.scope, stage, "row", "`by`", stage.span.end)
    typer.expect(stage.by, NUMBERS | {"bool"}, "a number or a bool")
    turns = begins_turn(stage.body)
    check_search(binder, stage, turns=turns)
    for name, column_type in SEARCHED_COLUMNS.items():
        binder.make(stage, ast.Name(name, span=word_span(stage)), column_type)
    binder.change(fresh=binder.flow.fresh and flow.fresh, spent=binder.flow.spent if turns else None)
    return replace(stage, body=(), turns=turns, stage=number), (body,)


def branch(binder: Binder, stage: ast.Branch, number: int) -> Blocks | None:
    """None for a `branch` of which no arm could be parsed."""
    scope = binder.scope
    if len(stage.arms) > MAX_ARMS:
        message = f"`branch` has at most {MAX_ARMS} arms, found {len(stage.arms)}"
        scope.error("QP301", message, word_span(stage), "too many")
    plans = _arms(binder, stage, passes=False)
    return (replace(stage, arms=tuple(() for _ in plans), stage=number), plans) if plans else None


def if_(binder: Binder, stage: ast.If, number: int) -> Blocks:
    scope = binder.scope
    reads: Reads = "row" if scope.columns else "option"
    if Typer(scope, stage, reads).expect(stage.condition, "bool", "a bool") == "bool":
        warn_where(binder, stage.condition, "its block never runs", "no other block runs")
    plans = _arms(binder, stage, passes=not stage.otherwise)
    return replace(stage, then=(), otherwise=(), stage=number), plans


def _arms(
    binder: Binder, stage: ast.Stage, *, passes: bool, models: Sequence[Mapping[str, BoundModel]] = ({},)
) -> tuple[LogicalPlan, ...]:
    """The plans of a stage's blocks, whose rows are united after it; with `passes` some rows go through none.

    There is a plan of each block for each of the `models`, which has these names for them.
    """
    scope, outer = binder.scope, binder.model_values
    before, flow = dict(scope.columns), binder.flow
    plans, columns, flows = [], [], []
    for named, block in product(models, blocks(stage)):
        scope.columns, binder.flow, binder.model_values = dict(before), flow, {**outer, **named}
        plans.append(_block(binder, stage, block))
        columns.append(scope.columns)
        flows.append(binder.flow)
    binder.model_values = outer
    if passes:
        columns.append(before)
        flows.append(flow)
    _check_contexts(binder, stage, flow, flows)
    scope.columns = _united_columns(binder, columns)
    binder.flow = _united_flow(flow, flows)
    return tuple(plans)


def _check_contexts(binder: Binder, stage: ast.Stage, before: Flow, arms: list[Flow]) -> None:
    """Reports a conversation that begins in some rows alone."""
    begun = [flow.context for flow in arms if flow.context is not None]
    if before.context is None and begun and len(begun) < len(arms):
        message = f"`{stage.word}` starts a conversation in some of the rows, and leaves the others without one"
        help = "start one in every block, or before the stage"
        binder.scope.error("QP215", message, word_span(begun[0]), "only some rows get here", help=help)


def each(binder: Binder, stage: ast.Each, number: int) -> Blocks:
    name = stage.column.id
    if isinstance(stage.source, ast.Name) and (models := binder.several(stage.source.id)):
        if binder.names_model(name) or name in binder.scope.params:
            binder.scope.error("QP208", f"`{name}` is the name of something else", stage.column.span)
        elif not stage.body:
            message, help = "`each` with a list of models has a block", f"each {name} in {stage.source.id} {{ … }}"
            binder.scope.error("QP121", message, stage.span, help=help)
        if len(models) > MAX_ARMS:
            message = f"`{stage.source.id}` has at most {MAX_ARMS} models, found {len(models)}"
            binder.scope.error("QP301", message, stage.source.span)
        arms = _arms(binder, stage, passes=False, models=[{name: model} for model in models])
        return ast.Branch(tuple(() for _ in arms), stage=number, span=stage.span), arms
    type_ = _element_type(binder, stage)
    binder.make(stage, stage.column, type_)
    body = _block(binder, stage, stage.body)
    binder.change(filtered=True)
    return replace(stage, body=(), type=type_, stage=number), (body,)


def _element_type(binder: Binder, stage: ast.Each) -> Type:
    """The type of what the list holds that an `each` goes through."""
    scope, source = binder.scope, stage.source
    if isinstance(source, ast.JsonPath):
        binder.needs_text(stage)
        return item_type(binder, source)
    reads: Reads = "row" if scope.columns else "option"
    type_ = Typer(scope, stage, reads).type(source)
    if is_list(type_) or type_ == "unknown":
        return item_of(type_)
    help = None
    if type_ == "text":
        help = "a list in a row's text is read by its path, as in `each step in .steps`; `extract all` makes one too"
    shown = "none" if type_ == "none" else f"a {type_}" if type_ != "int" else "an int"
    scope.error("QP321", f"`each` goes through a list, found {shown}", source.span, f"this is {shown}", help=help)
    return "unknown"


def peek(binder: Binder, stage: ast.Peek, number: int) -> Blocks:
    binder.needs_context(stage)
    before, flow = dict(binder.scope.columns), binder.flow
    body = _block(binder, stage, stage.body)
    _give_back(binder, stage, before, flow)
    _check_ends_in_one(binder, stage, "QP236")
    return replace(stage, body=(), alone=not _is_one_to_one(stage.body), stage=number), (body,)


def _is_one_to_one(stages: tuple[ast.Stage, ...]) -> bool:
    """Whether stages make one row of each, whatever its columns are."""
    for stage in stages:
        match stage:
            case ast.Repeat(gather=None) | ast.If():
                if not all(map(_is_one_to_one, blocks(stage))):
                    return False
            case ast.Generate(n=n) if n is not None and getattr(constant(n), "value", None) != 1:
                return False
            case ast.Generate() | ast.Peek():
                pass
            case ast.Call(into=None):
                return False
            case ast.Stage(rows="same") if not isinstance(stage, ast.Order | ast.RoundRobin):
                pass
            case _:
                return False
    return True


def _check_ends_in_one(binder: Binder, stage: ast.Peek | ast.Ask, code: str) -> None:
    """Reports a block that gives each row back and leaves several of it."""
    several = _last_fan_out(binder.module, stage.body, None, frozenset())
    if several is not None:
        message = f"`{stage.word}` gives each row back, but its stages leave several rows of it, by `{several.word}`"
        help = "end it with `best by …`, `vote …`, `keep 1 by …` or `join …`"
        binder.scope.error(code, message, word_span(several), "several rows", help=help)


def ask(binder: Binder, stage: ast.Ask, number: int) -> Blocks:
    """Its stages have a conversation of their own, and begin with the columns of the row."""
    scope = binder.scope
    before, flow, rounds = dict(scope.columns), binder.flow, binder.rounds
    binder.flow, binder.rounds = Flow(), 0
    body = _block(binder, stage, stage.body)
    binder.rounds = rounds
    own = _give_back(binder, stage, before, flow)
    _check_ends_in_one(binder, stage, "QP330")
    if not own and not scope.gaps:
        message = "`ask` makes no column, so that nothing comes of it"
        help = "give what it generates a name: `generate … into NAME`"
        scope.error("QP331", message, word_span(stage), "nothing comes out of this", help=help)
    return replace(stage, body=(), stage=number), (body,)


def _give_back(
    binder: Binder, stage: ast.Peek | ast.Ask, before: dict[str, BoundColumn], flow: Flow
) -> dict[str, BoundColumn]:
    """After the block of a stage that gives its rows back: the columns that it made, which the rows have besides."""
    own = {
        name: column
        for name, column in binder.scope.columns.items()
        if name not in COLUMNS and (name not in before or column.maker is not before[name].maker)
    }
    binder.scope.columns = {**{name: column for name, column in before.items() if name not in own}, **own}
    binder.flow = replace(flow, aside=stage if binder.flow.generated else flow.aside)
    return own


def _last_fan_out(
    module: Module, stages: tuple[ast.Stage, ...], before: ast.Stage | None, entered: frozenset[int]
) -> ast.Stage | None:
    """The stage that makes several rows of one, where the stages end in several; None where they end in one.

    `before` is the one that made the rows with which they begin. `entered` are the programs that call these stages.
    """
    several = before
    for stage in stages:
        match stage:
            case ast.Generate(n=n) if n is not None and getattr(constant(n), "value", None) != 1:
                several = stage
            case ast.Split() | ast.Branch() | ast.Each() | ast.Search():
                several = stage
            case ast.Stage(rows="one") if getattr(stage, "per", None) is None:
                several = None
            case ast.Stage(rows="count") if getattr(stage, "per", None) is None and _is_one(stage):
                several = None
            case ast.Repeat(body=body, gather=None):
                several = _last_fan_out(module, body, several, entered) or several
            case ast.Repeat():
                several = stage
            case ast.If(then=then, otherwise=otherwise):
                ends = [_last_fan_out(module, block, several, entered) for block in (then, otherwise)]
                several = ends[0] or ends[1]
            case ast.Call(program=name, into=None) if name in module.programs:
                source, called = module.programs[name]
                if id(called) not in entered:
                    inside = _last_fan_out(source, called.body, several, entered | {id(called)})
                    several = inside if inside is None or inside is several else stage
    return several


def _is_one(stage: ast.Stage) -> bool:
    """Whether a stage that keeps so many rows keeps one."""
    return getattr(constant(getattr(stage, "count", None)), "value", None) == 1


def _block(binder: Binder, outer: ast.Stage, stages: tuple[ast.Stage, ...]) -> LogicalPlan:
    """The plan of a block of the stage `outer`."""
    plan: list[LogicalOp] = []
    for stage in stages:
        if isinstance(stage, ast.Return):
            message = f"`return` cannot stand inside `{outer.word}`"
            binder.scope.error("QP217", message, word_span(stage))
        binder.add(plan, stage)
    return tuple(plan)


def _united_columns(binder: Binder, arms: list[dict[str, BoundColumn]]) -> dict[str, BoundColumn]:
    """The columns of all arms. In rows of an arm that does not make a column, it is none."""
    united: dict[str, BoundColumn] = {}
    for name in dict.fromkeys(name for arm in arms for name in arm):
        first, *others = [arm[name] for arm in arms if name in arm]
        type_: Type = first.type
        for column in others:
            type_ = _common_type(binder, name, type_, first, column)
        schemas: set[CompiledSchema | None] = {column.schema for column in (first, *others)}
        outdated = next((column.outdated for column in (first, *others) if column.outdated is not None), None)
        united[name] = BoundColumn(type_, first.maker, first.schema if len(schemas) == 1 else None, outdated)
    return united


def _common_type(binder: Binder, name: str, type_: Type, first: BoundColumn, column: BoundColumn) -> Type:
    if (both := common_type(type_, column.type)) is not None:
        return both
    first_span, span = _maker_span(first), _maker_span(column)
    message = f"`{name}` is {type_} in one block and {column.type} in another"
    if span is None or first_span is None:
        made_span = span or first_span
        assert made_span is not None
        binder.scope.error("QP230", message, made_span, "another type than in the rows that came in")
    else:
        why = (Label(first_span, f"here it is {type_}"),)
        binder.scope.error("QP230", message, span, f"here it is {column.type}", secondary=why)
    return "unknown"


def _maker_span(column: BoundColumn) -> Span | None:
    return (column_name(column.maker) or column.maker).span if column.maker else None


def _united_flow(before: Flow, arms: list[Flow]) -> Flow:
    """What holds of the rows of all arms."""
    if not arms:
        return before
    kinds = {flow.kind for flow in arms if flow.kind is not None}
    spent = all(flow.spent is not None for flow in arms)
    return Flow(
        context=before.context or next((flow.context for flow in arms if flow.context is not None), None),
        kind=kinds.pop() if len(kinds) == 1 else "either" if kinds else None,
        problem=_united_problem([flow.problem for flow in arms]),
        generated=any(flow.generated for flow in arms),
        fresh=all(flow.fresh for flow in arms),
        spent=arms[0].spent if spent else None,
        aside=next((flow.aside for flow in arms if flow.aside is not None), None),
        filtered=all(flow.filtered for flow in arms),
        thinking=any(flow.thinking for flow in arms),
        written=frozenset[str]().union(*(flow.written for flow in arms)),
    )


def _united_problem(arms: list[Problem]) -> Problem:
    """The default problem of the rows of all arms: doubtful where it is in one of them."""
    known = [problem for problem in arms if problem != Problem()] or [Problem()]
    return next((problem for problem in known if problem.doubt is not None), known[0])


_COMPARABLE = {"text": None, "number": NUMBERS | {"text"}, "math": NUMBERS | {"text"}}


def add_stage(binder: Binder, plan: list[LogicalOp], stage: ast.Stage) -> None:
    """Appends the operators of a stage to the plan, which is usable only where no error was reported."""
    stage = with_draws(stage, binder.draws)
    if isinstance(stage, ast.Call):
        add_call(binder, plan, stage)
        return
    for part in prefill(stage):
        if isinstance(part, ast.Return | ast.Strategy):
            next(binder.stages)
            continue
        usual: Callable[[Binder, Any, int], _Checked] = score if isinstance(part, ast.Score) else _declared
        check = _CHECKS.get(type(part), usual)
        found = check(binder, part, next(binder.stages))
        op, inside = found if isinstance(found, tuple) else (found, ())
        if op is not None:
            plan.append(LogicalOp(op, binder.scope.types(), inside))


def _declared(binder: Binder, stage: ast.Stage, number: int) -> ops.Operator:
    binder.check_parts(stage)
    return replace(stage, stage=number)


def _let(binder: Binder, stage: ast.Let, number: int) -> ops.Operator:
    type_ = Typer(binder.scope, stage, "row", upto=stage.value.span.end).type(stage.value)
    # What begins as none may be anything later.
    binder.make(stage, stage.column, "unknown" if type_ == "none" else type_)
    return replace(stage, stage=number)


def _where(binder: Binder, stage: ast.Where, number: int) -> ops.Operator:
    if not _reads_parameters(binder, stage.condition):
        binder.needs_rows(stage, stage.condition)
    if Typer(binder.scope, stage, "row").expect(stage.condition, "bool", "a bool") == "bool":
        warn_where(binder, stage.condition)
    binder.change(filtered=True)
    return replace(stage, stage=number)


def _reads_parameters(binder: Binder, condition: ast.Expr) -> bool:
    """Whether a condition is about the program's arguments, so that it holds for all rows or for none."""
    read = {name.id for name in names(condition)}
    return bool(read) and read <= binder.scope.params.keys() - binder.scope.columns.keys()


def _keep(binder: Binder, stage: ast.Keep, number: int) -> ops.Operator:
    binder.check_parts(stage)
    like = binder.program.like
    return replace(stage, like=like.system if like else None, stage=number)


def _best(binder: Binder, stage: ast.Best, number: int) -> ops.Operator:
    binder.check_parts(stage)
    one = ast.Literal(1, span=word_span(stage))
    return ops.Keep(one, stage.by, stage.per, stage=number, span=stage.span)


def _join(binder: Binder, stage: ast.Join, number: int) -> ops.Operator:
    scope, column = binder.scope, binder.scope.columns.pop(ROW_NUMBER, None)
    binder.needs_rows(stage, stage.value, stage.per)
    reads = [name for name in names(stage.value) if name.id == ROW_NUMBER]
    if reads and (column is not None or ROW_NUMBER in scope.params):
        what = "parameter" if column is None else "column"
        message = f"in `join` the name `{ROW_NUMBER}` is the row's number, and it is a {what} too"
        scope.error("QP320", message, reads[0].span, "which one?", help=f"give the {what} another name")
    scope.columns[ROW_NUMBER] = BoundColumn("int")
    binder.check_part(stage, "value")
    del scope.columns[ROW_NUMBER]
    if column is not None:
        scope.columns[ROW_NUMBER] = column
    binder.check_part(stage, "sep")
    binder.check_part(stage, "per")
    binder.make(stage, stage.column, "text")
    return replace(stage, stage=number)


def _split(binder: Binder, stage: ast.Split, number: int) -> ops.Operator:
    if all(column.maker is None for column in binder.scope.columns.values()):
        binder.needs_context(stage)
    if stage.by is not None:
        for name in ("count", "by", "temperature", "per"):
            binder.check_part(stage, name, place="the number of rows" if name == "count" else "")
        return replace(stage, ordinal=-1 if stage.draw is None else next(binder.draws), stage=number)
    binder.check_part(stage, "count")
    if stage.temperature is not None:
        help = "write `split N by EXPR temperature=T`"
        message = "`temperature` shares rows out by a value, and this `split` has none"
        binder.scope.error("QP116", message, stage.temperature.span, "without `by`", help=help)
    return replace(stage, temperature=None, draw=None, finished="pass", per=None, stage=number)


def _vote(binder: Binder, stage: ast.Vote, number: int) -> ops.Operator:
    binder.check_parts(stage)
    stage = replace(stage, otherwise=None)
    column, comparable = binder.scope.columns.get(stage.column.id), _COMPARABLE[stage.equal]
    if column is not None and comparable is not None and column.type not in comparable | {"unknown"}:
        message = f"`equal={stage.equal}` compares numbers, but `{stage.column.id}` is {column.type}"
        binder.scope.error("QP209", message, stage.column.span, f"this is {column.type}", help="leave `equal` out")
    if stage.weight is not None:
        check_weight(binder, stage.weight)
    if stage.decided is not None and stage.weight is not None:
        message = "`decided` counts votes, and this vote weighs them"
        binder.scope.error("QP251", message, stage.decided.span, "not of weights", help="leave one of them out")
        stage = replace(stage, decided=None)
    maker = None if column is None else column.maker
    return replace(stage, sought=sought_by(maker) if isinstance(maker, ast.Extract) else None, stage=number)


_Checked = ops.Operator | tuple[ops.Operator, tuple[LogicalPlan, ...]] | None
# How stages are checked that are more than their parts. Each gives the operator, with the plans of its blocks.
_CHECKS: Mapping[type[ast.Stage], Callable[[Binder, Any, int], _Checked]] = {
    ast.Prompt: set_context,
    ast.Chat: set_context,
    ast.Say: say,
    ast.Generate: generate,
    ast.Tournament: tournament,
    ast.KeepTournament: tournament,
    ast.RoundRobin: tournament,
    ast.Extract: extract,
    ast.Tool: tool,
    ast.Let: _let,
    ast.Where: _where,
    ast.Keep: _keep,
    ast.Best: _best,
    ast.Join: _join,
    ast.Vote: _vote,
    ast.Split: _split,
    ast.Repeat: repeat,
    ast.Search: search,
    ast.Branch: branch,
    ast.If: if_,
    ast.Each: each,
    ast.Peek: peek,
    ast.Ask: ask,
}
