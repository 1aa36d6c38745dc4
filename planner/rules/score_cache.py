"""Keeps the score of every step by its content, over rows, rounds and problems (section 5.3.2 of the thesis)."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, ScoreStrategy
from qpdsl.planner.plan.rewrite import decide, each
from qpdsl.planner.rules.rule import Rule

NAME = "score_cache"


def score_cache(plan: PhysicalPlan) -> PhysicalPlan:
    """A step's score hangs on the tokens up to it and on nothing else."""
    return each(plan, _cached)


def _cached(node: PhysicalOp) -> PhysicalOp:
    if not isinstance(node.op, ops.Score) or not isinstance(node.strategy, ScoreStrategy):
        return node
    return decide(node, replace(node.strategy, cache=True), NAME)


RULE = Rule(
    NAME,
    "keep the score of every step by its content, and read only the steps that have none",
    "exact",
    "after the rule that makes the steps it leaves over cheap",
    score_cache,
)
