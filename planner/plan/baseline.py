"""What greedy decoding would have answered: the program that a search is measured against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.words import COLUMNS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import LogicalProgram, PlanBuilder
from qpdsl.planner.plan.ops import LogicalPlan
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.reads import column_expressions, made_column, names
from qpdsl.planner.plan.verify import verify_logical

_READ_OUT = (ops.Extract, ops.PythonExtract)


def greedy_of(program: LogicalProgram) -> LogicalProgram | None:
    """The same questions to the same models, each answered once at temperature 0, read out as the program does.

    None where the program is that already, where it branches, where it writes a part of an answer itself, or where it
    goes on from what greedy decoding does not make (a score, what another program gave back).
    """
    walk = list(_walk(program.plan, depth=0))
    if any(isinstance(op, ops.Branch | ops.Say) for op, _, _ in walk):
        return None
    answers = _answers(walk)
    if not answers or _is_greedy(walk, answers):
        return None
    columns: dict[str, str] = {}
    params = {param.name for param in program.params}
    chain = PlanBuilder(ops.Start(stage=-1, span=answers[0].span), {})
    models: dict[str, str] = {}
    for op, _, types in walk:
        kept = next((answer for answer in answers if answer.stage == op.stage), None) if _generates(op) else op
        if kept is None or not isinstance(kept, (ops.SetContext, ops.Generate, ops.Return, ops.Let, *_READ_OUT)):
            continue
        if any(name.id not in columns and name.id not in params for e in column_expressions(kept) for name in names(e)):
            if isinstance(kept, ops.Let):  # whoever reads its column finds none
                continue
            return None
        column = made_column(kept)
        if isinstance(kept, ops.SetContext):
            columns = {**columns, **COLUMNS}
        elif column is not None:
            columns = {**{name: type_ for name, type_ in columns.items() if name != column}, column: types[column]}
        if isinstance(kept, ops.Generate):
            models[kept.model] = program.models[kept.model]
        chain.add(kept, columns)
    plan = chain.done()
    verify_logical(plan, params)
    return replace(program, plan=plan, models=models, score_column=None, warnings=(), budget=None, ways=())


_Step = tuple[ops.Operator, int, Mapping[str, str]]


def _walk(plan: LogicalPlan, depth: int) -> Iterator[_Step]:
    """All operators in reading order, with how many `repeat`s they stand in and the columns that they leave."""
    for node in plan.order():
        op = plan.op(node)
        if isinstance(op, ops.Start):
            continue
        yield op, depth, plan.columns(node)
        if isinstance(op, ops.Repeat | ops.Search):
            yield from _walk(op.body, depth + 1)


def _generates(op: ops.Operator) -> bool:
    return isinstance(op, ops.Generate)


def _answers(walk: list[_Step]) -> list[ops.Generate]:
    """One generate for each question: the first after each context, decoded greedily."""
    answers: list[ops.Generate] = []
    context_depth = 0
    open_question = False
    for op, depth, _ in walk:
        if isinstance(op, ops.SetContext):
            context_depth, open_question = depth, True
        elif isinstance(op, ops.Generate) and open_question:
            answers.append(_greedy(op, whole=depth == context_depth))
            open_question = False
    return answers


def _is_greedy(walk: list[_Step], answers: list[ops.Generate]) -> bool:
    generates = [(op, depth) for op, depth, _ in walk if isinstance(op, ops.Generate)]
    if len(generates) != len(answers) or any(depth or op.via is not None for op, depth in generates):
        return False
    options = [(constant(op.n), constant(op.temperature)) for op, _ in generates]
    return all(
        isinstance(n, ast.Literal) and isinstance(t, ast.Literal) and n.value == 1 and t.value == 0 for n, t in options
    )


def _greedy(op: ops.Generate, *, whole: bool) -> ops.Generate:
    """One sample to its end. A bound on tokens holds for a whole sample; inside `repeat` it is one of a step."""
    one, zero = ast.Literal(1, span=op.span), ast.Literal(0.0, span=op.span)
    return ops.Generate(
        op.model,
        one,
        zero,
        max_tokens=op.max_tokens if whole else None,
        constraint=op.constraint,
        into=op.into,
        ordinal=op.ordinal,
        stage=op.stage,
        span=op.span,
    )
