"""Logical plan to the naive physical plan: every operator in the plainest way there is, with a row estimate."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.planner import ops
from qpdsl.planner.implementation import implementation
from qpdsl.planner.logical import LogicalPlan, LogicalProgram
from qpdsl.planner.options import constant
from qpdsl.planner.physical import Equivalence, PhysicalOp, PhysicalPlan, everything
from qpdsl.planner.rows import Estimate, estimate
from qpdsl.planner.strategy import plainest


def plan(program: LogicalProgram, reads: tuple[str, ...] | None = None) -> PhysicalPlan:
    """The naive plan: it runs the program as it is written, and shares, keeps and merges nothing.

    `reads`: see `PhysicalPlan`.
    """
    rows = estimate(program.plan, program.params)
    physical = _operators(program.plan, rows, "")
    lossy = any(op.equivalence == "lossy" for op in everything(physical))
    return PhysicalPlan(
        name=program.name,
        source_name=program.source_name,
        params=program.params,
        declared=_declared(program),
        models=program.models,
        ops=physical,
        returns=program.returns,
        score_column=program.score_column,
        equivalence="lossy" if lossy else "exact",
        within=_within(program.within, lossy=lossy),
        prefer=program.prefer,
        reads=reads,
    )


def _within(within: ast.Within | None, *, lossy: bool) -> str:
    """The permission in the words of the program; `via` is one in itself."""
    if within is None:
        return "lossy" if lossy else "exact"
    return "exact" if within.bound is None else f"{within.level}({within.bound:g})"


def _declared(program: LogicalProgram) -> dict[str, ast.Expr | None]:
    """The defaults as the program's text has them, also where the caller put values in their place."""
    if program.syntax is None:
        return {param.name: param.default for param in program.params}
    return {param.name: constant(param.default) for param in program.syntax.params}


def _operators(logical: LogicalPlan, rows: Estimate, prefix: str) -> tuple[PhysicalOp, ...]:
    """The operators in running order. A start makes no rows of its own, so it is no physical operator.

    Ids go on inside: "3.0" is the first operator of operator 3's body, "3.1.0" that of its second arm.
    """
    order = [node for node in logical.order() if not isinstance(logical.op(node), ops.Start)]
    ids = {node: f"{prefix}{index}" for index, node in enumerate(order)}
    physical = []
    for node in order:
        op, id = logical.op(node), ids[node]
        body: tuple[PhysicalOp, ...] = ()
        arms: tuple[tuple[PhysicalOp, ...], ...] = ()
        if isinstance(op, ops.Repeat | ops.Peek):
            body = _operators(op.body, rows.inside[node][0], f"{id}.")
        elif isinstance(op, ops.Branch):
            inside = enumerate(zip(op.arms, rows.inside[node], strict=True))
            arms = tuple(_operators(arm, made, f"{id}.{index}.") for index, (arm, made) in inside)
        equivalence: Equivalence = "lossy" if isinstance(op, ops.Generate) and op.via is not None else "exact"
        physical.append(
            PhysicalOp(
                id=id,
                op=op,
                implementation=implementation(op, plainest(op)),
                equivalence=equivalence,
                rows=rows.rows[node],
                inputs=tuple(ids[producer] for producer in logical.inputs(node) if producer in ids),
                columns=logical.columns(node),
                body=body,
                arms=arms,
                how=plainest(op),
            )
        )
    return tuple(physical)
