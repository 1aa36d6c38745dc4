"""The columns after every stage of a file, as far as they are known, also in a file with errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import blocks
from qpdsl.grammar.diagnostic import Diagnostic, in_order
from qpdsl.grammar.source import Span
from qpdsl.planner.check.lower import lower_all
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.ops import LogicalPlan

ColumnTypes = Mapping[str, str]


def check_columns(
    file: ast.File, environment: Environment
) -> tuple[tuple[Diagnostic, ...], Mapping[Span, ColumnTypes]]:
    """All diagnostics of the file, and the types of the columns after each stage, by the stage's span."""
    lowered, diagnostics = lower_all(file, environment)
    columns: dict[Span, ColumnTypes] = {}
    for program in lowered:
        # Of a program that leaves ways open, the stages of each arm are those of its ways.
        for one in [way.program for way in program.ways] or [program]:
            if one.syntax is not None:
                columns.update(_columns_after(one.syntax.body, one.plan))
    return in_order(diagnostics), columns


def _columns_after(stages: tuple[ast.Stage, ...], plan: LogicalPlan) -> Iterator[tuple[Span, ColumnTypes]]:
    """The operators of a block are in its stages' order; those of a program called without `into` in that of `call`."""
    nodes = list(plan.order())
    spans = [stage.span for stage in stages if not _is_pasted(stage)]
    for stage in stages:
        if _is_pasted(stage):
            while len(nodes) > 1 and not _is_of_another_stage(plan.op(nodes[1]), spans):
                nodes.pop(0)
            yield stage.span, plan.columns(nodes[0])
            continue
        index = next((i for i, node in enumerate(nodes) if plan.op(node).span == stage.span and i), None)
        if index is None:
            continue
        del nodes[:index]
        yield stage.span, plan.columns(nodes[0])
        for block, inner in zip(blocks(stage), _inner_plans(plan.op(nodes[0])), strict=True):
            yield from _columns_after(block, inner)


def _is_pasted(stage: ast.Stage) -> bool:
    """Whether the operators of a called program stand in the stage's place."""
    return isinstance(stage, ast.Call) and stage.into is None


def _is_of_another_stage(op: ops.Operator, spans: list[Span]) -> bool:
    """Whether an operator after those of a `call` belongs to a stage with one of these spans, or ends the program."""
    return op.span in spans or isinstance(op, ops.Return)


def _inner_plans(op: ops.Operator) -> tuple[LogicalPlan, ...]:
    match op:
        case ops.Repeat(body=body) | ops.Search(body=body) | ops.Peek(body=body) | ops.Ask(body=body):
            return (body,)
        case ops.Each(body=body):
            return (body,)
        case ops.Branch(arms=arms) | ops.If(arms=arms):
            return arms
    return ()
