"""Keeps the score of every step by its content, over rows, rounds and problems (section 5.3.2 of the thesis)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, ScoreStrategy
from qpdsl.planner.plan.rewrite import decide, map_operators, operator_pairs, with_strategies
from qpdsl.planner.plan.rule import Alternative, Knob, Rule

NAME = "score_cache"


def score_cache(plan: PhysicalPlan) -> PhysicalPlan:
    """A step's score depends on the tokens up to it and on nothing else."""
    return map_operators(plan, _cached)


def _cached(node: PhysicalOp) -> PhysicalOp:
    if not isinstance(node.op, ops.Score) or not isinstance(node.strategy, ScoreStrategy):
        return node
    return decide(node, replace(node.strategy, cache=True), NAME)


def _words(node: PhysicalOp) -> Iterator[str]:
    if isinstance(node.strategy, ScoreStrategy) and node.strategy.cache:
        yield "score cache"


def _alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    """Scores that are another operator's read again ask no model; whole texts are scored once in every plan."""
    for node, decided in operator_pairs(plan, ruled):
        match decided.strategy, node.strategy:
            case ScoreStrategy(share=True, cache=True, same_as=None), ScoreStrategy() as strategy:
                knob = Knob("scores of steps", "score", node.id)
                for cache, value in ((True, "kept"), (False, "read again")):
                    changed = replace(strategy, cache=cache)
                    yield Alternative(knob, value, with_strategies(plan, {node.id: changed}))


RULE = Rule(
    NAME,
    "keep the score of every step by its content, and read only the steps that have none",
    "exact",
    "after incremental scores, which make the remaining steps cheap",
    score_cache,
    _words,
    _alternatives,
)
