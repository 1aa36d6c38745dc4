"""Computes the KV of a prefix once: for the samples of a row, and for the rows, arms and rounds that continue it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan, ScoreStrategy
from qpdsl.planner.plan.rewrite import decide, map_operators, operator_pairs, with_strategies
from qpdsl.planner.plan.rule import Alternative, Knob, Rule

NAME = "share_prefixes"


def share_prefixes(plan: PhysicalPlan) -> PhysicalPlan:
    """KV is exact however it came about, so whatever is generated can share it."""
    return map_operators(plan, _shared)


def _shared(node: PhysicalOp) -> PhysicalOp:
    match node.op, node.strategy:
        case ops.Generate(), GenerateStrategy() as strategy:
            return decide(node, replace(strategy, share=True), NAME)
        case ops.Judge() | ops.Prob() | ops.Tournament(), ScoreStrategy() as strategy:
            return decide(node, replace(strategy, share=True), NAME)
    return node


def _words(node: PhysicalOp) -> Iterator[str]:
    match node.op, node.strategy:
        case (ops.Generate(), GenerateStrategy(share=True)) | (
            ops.Judge() | ops.Prob() | ops.Tournament(),
            ScoreStrategy(share=True),
        ):
            yield "prefix shared"


def _alternatives(plan: PhysicalPlan, ruled: PhysicalPlan) -> Iterator[Alternative]:
    """Scores that are another operator's read again ask no model, so there is nothing to decide about them."""
    for node, decided in operator_pairs(plan, ruled):
        match node.op, decided.strategy, node.strategy:
            case ops.Generate(), GenerateStrategy(share=True), GenerateStrategy() as strategy:
                knob = Knob("prefixes", "generate", node.id)
                together = replace(strategy, share=True)
                yield Alternative(knob, "shared", with_strategies(plan, {node.id: together}))
                # A sample runs ahead on a prefix that is shared.
                alone = replace(strategy, share=False, run_ahead=0)
                yield Alternative(knob, "computed by every sample", with_strategies(plan, {node.id: alone}))
            case (
                ops.Judge() | ops.Prob() | ops.Tournament(),
                ScoreStrategy(share=True, same_as=None),
                ScoreStrategy() as judging,
            ):
                knob = Knob("prefixes", type(node.op).__name__.lower(), node.id)
                for share, value in ((True, "what is new in them"), (False, "whole")):
                    changed = replace(judging, share=share)
                    yield Alternative(knob, value, with_strategies(plan, {node.id: changed}))


RULE = Rule(
    NAME,
    "compute a prompt once for all samples, and a prefix once for all rows, arms and rounds",
    "exact",
    "before what builds on a prefix that is kept: incremental scores, and steps that run ahead",
    share_prefixes,
    _words,
    _alternatives,
)
