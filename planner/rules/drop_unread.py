"""Drops columns that nobody reads, and the stages that only make such columns."""

from __future__ import annotations

from qpdsl.grammar.ast.walk import made_column
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.reads import Columns, inner_reads, reads, reported, with_columns
from qpdsl.planner.plan.rule import Chain, Rule, with_inner, with_ops

# Stages that do nothing but add a column. A registered Python function may do more than it returns, so it is called.
_ONLY_COLUMNS = (
    ops.StepScore,
    ops.Judge,
    ops.Prob,
    ops.LogProb,
    ops.DrawScore,
    ops.Equal,
    ops.ValidJson,
    ops.Passes,
    ops.Extract,
    ops.Let,
)


def drop_unread(plan: PhysicalPlan) -> PhysicalPlan:
    """Live columns are followed from the end to the beginning, through `repeat` until they are the same each round."""
    kept, _ = _chain(plan.ops, reported(plan))
    return with_ops(plan, with_columns(kept, {}))


def _chain(chain: Chain, live: Columns) -> tuple[Chain, Columns]:
    """The operators that are needed where `live` is read of what they make, and what these read of what they get."""
    kept: list[PhysicalOp] = []
    for node in reversed(chain):
        made = made_column(node.op)
        if isinstance(node.op, _ONLY_COLUMNS) and made not in live:
            continue
        node, live = _needed(node, live)
        kept.append(node)
    return tuple(reversed(kept)), live


def _needed(node: PhysicalOp, live: Columns) -> tuple[PhysicalOp, Columns]:
    if isinstance(node.op, ops.Call):
        # Its rows are its own: of what they hold only its value is read.
        body, _ = _chain(node.body, inner_reads(node))
        return with_inner(node, body, ()), live | reads(node)
    if node.body:
        live |= reads(node)
        while True:
            body, first = _chain(node.body, live)
            if first <= live:
                return with_inner(node, body, ()), live
            live |= first
    if node.arms:
        arms = [_chain(arm, live) for arm in node.arms]
        kept = with_inner(node, (), tuple(arm for arm, _ in arms))
        return kept, live.union(reads(node), *(first for _, first in arms))
    if isinstance(node.op, _ONLY_COLUMNS):
        live -= {made_column(node.op)}
    return node, live | reads(node)


RULE = Rule(
    "drop_unread",
    "drop unread columns, and stages that only make such columns",
    "exact",
    "first: nothing needs to be decided about what does not run",
    drop_unread,
)
