"""Logical plan to physical plan: every operator in its straightforward implementation, with a row estimate."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.planner import ops
from qpdsl.planner.logical import LogicalPlan, LogicalProgram
from qpdsl.planner.options import constant
from qpdsl.planner.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.rows import Estimate, estimate

IMPLEMENTATIONS: dict[type[ops.Operator], str] = {
    ops.SetContext: "template",
    ops.Generate: "paged decode · dense head",
    ops.Score: "paged prefill · prefix cached",
    ops.Extract: "rows",
    ops.TopK: "rows",
    ops.Vote: "rows",
    ops.Repeat: "loop",
    ops.Return: "rows",
}


def plan(program: LogicalProgram) -> PhysicalPlan:
    """The plan that runs the program as it is written."""
    rows = estimate(program.plan, program.params)
    return PhysicalPlan(
        name=program.name,
        source_name=program.source_name,
        params=program.params,
        declared=_declared(program),
        models=program.models,
        ops=_operators(program.plan, rows, ""),
        returns=program.returns,
        score_column=program.score_column,
        equivalence="exact",
    )


def _declared(program: LogicalProgram) -> dict[str, ast.Expr | None]:
    """The defaults as the program's text has them, also where the caller put values in their place."""
    if program.syntax is None:
        return {param.name: param.default for param in program.params}
    return {param.name: constant(param.default) for param in program.syntax.params}


def _operators(logical: LogicalPlan, rows: Estimate, prefix: str) -> tuple[PhysicalOp, ...]:
    """The operators in running order. A start makes no rows of its own, so it is no physical operator."""
    order = [node for node in logical.order() if not isinstance(logical.op(node), ops.Start)]
    ids = {node: f"{prefix}{index}" for index, node in enumerate(order)}
    physical = []
    for node in order:
        op = logical.op(node)
        body: tuple[PhysicalOp, ...] = ()
        if isinstance(op, ops.Repeat):
            body = _operators(op.body, rows.bodies[node], f"{ids[node]}.")
        physical.append(
            PhysicalOp(
                id=ids[node],
                op=op,
                implementation=IMPLEMENTATIONS[type(op)],
                equivalence="exact",
                rows=rows.rows[node],
                inputs=tuple(ids[producer] for producer in logical.inputs(node) if producer in ids),
                columns=logical.columns(node),
                body=body,
            )
        )
    return tuple(physical)
