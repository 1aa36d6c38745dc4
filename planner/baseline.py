"""What greedy decoding would have answered: the program that a search is measured against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.words import COLUMNS
from qpdsl.planner import ops
from qpdsl.planner.chain import Chain
from qpdsl.planner.logical import LogicalPlan, LogicalProgram
from qpdsl.planner.options import constant
from qpdsl.planner.reads import names
from qpdsl.planner.verify import verify


def greedy_of(program: LogicalProgram) -> LogicalProgram | None:
    """The same question to the same model, answered once at temperature 0, read out as the program reads it out.

    None where the program is that already, or where it gives back what greedy decoding does not make (a score).
    """
    walk = list(_walk(program.plan, depth=0))
    generates = [(op, depth) for op, depth in walk if isinstance(op, ops.Generate)]
    if not generates or _is_greedy(generates):
        return None
    first, depth = generates[0]
    columns: dict[str, str] = dict(COLUMNS)
    chain = Chain(ops.Start(stage=-1, span=first.span), {})
    for op, _ in walk:
        if isinstance(op, (ops.SetContext, ops.Extract)):
            if isinstance(op, ops.Extract):
                columns = {**{k: v for k, v in columns.items() if k != op.column}, op.column: "text"}
            chain.add(op, columns)
        elif op is first:
            chain.add(_greedy(first, whole=depth == 0), columns)
    last = program.plan.op(program.plan.root)
    assert isinstance(last, ops.Return)
    params = {param.name for param in program.params}
    if any(name.id not in columns and name.id not in params for name in names(last.value)):
        return None
    chain.add(last, columns)
    plan = chain.done()
    verify(plan, params)
    models = {first.model: program.models[first.model]}
    return replace(program, plan=plan, models=models, score_column=None, warnings=())


def _walk(plan: LogicalPlan, depth: int) -> Iterator[tuple[ops.Operator, int]]:
    """All operators in reading order, with how many `repeat`s they stand in."""
    for node in plan.order():
        op = plan.op(node)
        yield op, depth
        if isinstance(op, ops.Repeat):
            yield from _walk(op.body, depth + 1)


def _is_greedy(generates: list[tuple[ops.Generate, int]]) -> bool:
    (op, depth), *more = generates
    n, temperature = constant(op.n), constant(op.temperature)
    if more or depth or not (isinstance(n, ast.Literal) and isinstance(temperature, ast.Literal)):
        return False
    return n.value == 1 and temperature.value == 0


def _greedy(op: ops.Generate, *, whole: bool) -> ops.Generate:
    """One sample to its end. A bound on tokens holds for a whole sample; inside `repeat` it is one of a step."""
    one, zero = ast.Literal(1, span=op.span), ast.Literal(0.0, span=op.span)
    max_tokens = op.max_tokens if whole else None
    return ops.Generate(op.model, one, zero, max_tokens=max_tokens, stage=op.stage, span=op.span)
