"""Computes the KV of a prefix once: for the samples of a row, for rows, arms and rounds that go on from it."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan, ScoreStrategy
from qpdsl.planner.plan.rewrite import decide, each
from qpdsl.planner.rules.rule import Rule

NAME = "share_prefixes"


def share_prefixes(plan: PhysicalPlan) -> PhysicalPlan:
    """KV is exact however it came about, so whatever is generated can share it."""
    return each(plan, _shared)


def _shared(node: PhysicalOp) -> PhysicalOp:
    match node.op, node.strategy:
        case ops.Generate(), GenerateStrategy() as strategy:
            return decide(node, replace(strategy, share=True), NAME)
        case ops.Judge(), ScoreStrategy() as strategy:
            return decide(node, replace(strategy, share=True), NAME)
    return node


RULE = Rule(
    NAME,
    "compute a prompt once for all samples, and a prefix once for all rows, arms and rounds",
    "exact",
    "before what builds on a prefix that is kept: incremental scores, and steps that run ahead",
    share_prefixes,
)
