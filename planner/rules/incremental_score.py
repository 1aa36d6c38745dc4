"""Scores on a prefix that grows: of a text that a verifier has seen before, only the new step is computed."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, ScoreStrategy
from qpdsl.planner.plan.rewrite import decide, each
from qpdsl.planner.rules.rule import Rule

NAME = "incremental_score"


def incremental_score(plan: PhysicalPlan) -> PhysicalPlan:
    """The verifier's KV is kept as the generator's is; the score cache leaves only new steps to be read."""
    return each(plan, _incremental)


def _incremental(node: PhysicalOp) -> PhysicalOp:
    if not isinstance(node.op, ops.Score) or not isinstance(node.strategy, ScoreStrategy):
        return node
    return decide(node, replace(node.strategy, share=True), NAME)


RULE = Rule(
    NAME,
    "compute only what is new in a text that a verifier has scored before",
    "exact",
    "beside sharing prefixes, which is the same for generators",
    incremental_score,
)
