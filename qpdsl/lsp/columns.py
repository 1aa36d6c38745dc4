"""The columns after every stage of a file, as far as they can be told: for editors, also where there are errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, in_order
from qpdsl.grammar.source import Span
from qpdsl.planner.check.lower import lower_all
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.ops import LogicalPlan

Relations = Mapping[Span, Mapping[str, str]]


def relations(file: ast.File, environment: Environment) -> tuple[tuple[Diagnostic, ...], Relations]:
    """All that is wrong with the file, and name → type of the columns after each stage, by the stage's span."""
    lowered, found = lower_all(file, environment)
    columns: dict[Span, Mapping[str, str]] = {}
    for program in lowered:
        if program.syntax is not None:
            columns.update(_after(program.syntax.body, program.plan))
    return in_order(found), columns


def _after(stages: tuple[ast.Stage, ...], plan: LogicalPlan) -> Iterator[tuple[Span, Mapping[str, str]]]:
    """The operators of a block stand in the order of its stages; those of a called program in the place of `call`."""
    nodes = list(plan.order())
    own = [stage.span for stage in stages if not isinstance(stage, ast.Call)]
    for stage in stages:
        if isinstance(stage, ast.Call):
            while (
                len(nodes) > 1 and plan.op(nodes[1]).span not in own and not isinstance(plan.op(nodes[1]), ops.Return)
            ):
                nodes.pop(0)
            yield stage.span, plan.columns(nodes[0])
            continue
        index = next((i for i, node in enumerate(nodes) if plan.op(node).span == stage.span and i), None)
        if index is None:
            continue
        del nodes[:index]
        op = plan.op(nodes[0])
        yield stage.span, plan.columns(nodes[0])
        match stage, op:
            case ast.Repeat(), ops.Repeat():
                yield from _after(stage.body, op.body)
            case ast.Peek(), ops.Peek():
                yield from _after(stage.body, op.body)
            case ast.Branch(), ops.Branch():
                for arm, inner in zip(stage.arms, op.arms, strict=True):
                    yield from _after(arm, inner)
