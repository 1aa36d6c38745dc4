"""Scores on a prefix that grows: if a verifier has seen the beginning of a text, only the new step is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, ScoreStrategy
from qpdsl.planner.plan.rewrite import decide, map_operators, operator_pairs, with_strategies
from qpdsl.planner.plan.rule import Alternative, Knob, Rule

NAME = "incremental_score"


def incremental_score(plan: PhysicalPlan) -> PhysicalPlan:
    """The verifier's KV is kept as the generator's is; the score cache leaves only new steps to be read."""
    return map_operators(plan, _incremental)


def _incremental(node: PhysicalOp) -> PhysicalOp:
    if not isinstance(node.op, ops.Score) or not isinstance(node.strategy, ScoreStrategy):
        return node
    return decide(node, replace(node.strategy, share=True), NAME)


def _words(node: PhysicalOp) -> Iterator[str]:
    match node.op, node.strategy:
        case ops.Score(), ScoreStrategy(share=True):
            yield "incremental"


def _alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    """Scores that are another operator's read again ask no model, so there is nothing to decide about them."""
    for node, decided in operator_pairs(plan, ruled):
        match node.op, decided.strategy, node.strategy:
            case ops.Score(), ScoreStrategy(share=True, same_as=None), ScoreStrategy() as strategy:
                knob = Knob("texts", "score", node.id)
                for share, value in ((True, "what is new in them"), (False, "whole")):
                    changed = replace(strategy, share=share)
                    yield Alternative(knob, value, with_strategies(plan, {node.id: changed}))


RULE = Rule(
    NAME,
    "compute only what is new in a text that a verifier has scored before",
    "exact",
    "beside sharing prefixes, which is the same for generators",
    incremental_score,
    _words,
    _alternatives,
)
