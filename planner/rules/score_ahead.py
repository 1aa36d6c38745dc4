"""Scores the steps of samples while these are drawn, where that tells which of them can be given up.

The least of a solution's step scores, and their product, only fall. So a `keep` or a vote that gives up samples knows
more of one with each step that is scored. A step is scored once: the score cache has it when the sample has ended.

Samples that are drawn side by side end at about the same time, when little is left to give up. So those of a `keep`
are begun in two waves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import (
    GenerateStrategy,
    PhysicalOp,
    PhysicalPlan,
    ScoreStrategy,
    Strategy,
    VoteStrategy,
)
from qpdsl.planner.plan.reads import GENERATED_COLUMNS, made_by, names
from qpdsl.planner.plan.rule import Alternative, Chain, Knob, Rule, decide, with_ops, with_strategies
from qpdsl.planner.rules.decided_vote import falls

NAME = "score_ahead"


def score_ahead(plan: PhysicalPlan) -> PhysicalPlan:
    """Looks at the scores between a `generate` and the vote or `keep` that it feeds row by row."""
    chain = plan.ops
    for index, feeding in enumerate(chain):
        if not isinstance(feeding.strategy, GenerateStrategy) or feeding.strategy.vote is None:
            continue
        vote = next(at for at, node in enumerate(chain) if node.id == feeding.strategy.vote)
        nodes = chain[index : vote + 1]
        changed = {at: _ahead(plan, nodes, chain[at]) for at in range(index + 1, vote)}
        last = chain[vote]
        ahead = any(isinstance(node.strategy, ScoreStrategy) and node.strategy.ahead for node in changed.values())
        if ahead and isinstance(last.op, ops.Keep) and isinstance(last.strategy, VoteStrategy):
            changed[vote] = replace(last, strategy=replace(last.strategy, waves=True))
        chain = tuple(changed.get(at, node) for at, node in enumerate(chain))
    return with_ops(plan, chain)


def _ahead(plan: PhysicalPlan, nodes: Chain, link: PhysicalOp) -> PhysicalOp:
    op, strategy = link.op, link.strategy
    if not isinstance(op, ops.StepScore) or not isinstance(strategy, ScoreStrategy) or not falls(plan, nodes, link):
        return link
    # What was read while a sample was drawn is found again by its content.
    known_before = strategy.cache and strategy.share and strategy.same_as is None
    asked = set() if op.given is None else {name.id for name in names(op.given)}
    same = not asked & (GENERATED_COLUMNS | made_by(nodes[:-1]))
    here = plan.remote_model(op.verifier.name) is None
    return decide(link, replace(strategy, ahead=True), NAME) if known_before and same and here else link


def _words(node: PhysicalOp) -> Iterator[str]:
    if isinstance(node.strategy, ScoreStrategy) and node.strategy.ahead:
        yield "steps as they are drawn"


def _alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    """The scores before a `keep` and its waves are decided about together."""
    nodes = {node.id: node for node in plan.ops}
    for feeding in ruled.ops:
        if not isinstance(feeding.strategy, GenerateStrategy) or feeding.strategy.vote is None:
            continue
        scores = [node for node in ruled.ops if isinstance(node.strategy, ScoreStrategy) and node.strategy.ahead]
        vote = nodes[feeding.strategy.vote]
        for words, ahead in (("as they are drawn", True), ("of whole samples", False)) if scores else ():
            changed: dict[str, Strategy] = {}
            for node in scores:
                strategy = nodes[node.id].strategy
                assert isinstance(strategy, ScoreStrategy)
                changed[node.id] = replace(strategy, ahead=ahead)
            if isinstance(vote.op, ops.Keep) and isinstance(vote.strategy, VoteStrategy):
                changed[vote.id] = replace(vote.strategy, waves=ahead and vote.strategy.decided)
            yield Alternative(Knob("steps", "score", scores[0].id), words, with_strategies(plan, changed))


RULE = Rule(
    NAME,
    "score steps while a sample is drawn, where that tells whether it can still be kept",
    "exact",
    "after votes that can be decided early, which go by these scores",
    score_ahead,
    _words,
    _alternatives,
)
