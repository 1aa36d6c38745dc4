"""Walking and changing physical plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from qpdsl.planner.plan.implementation import implementation
from qpdsl.planner.plan.physical import Strategy, PhysicalOp, PhysicalPlan

Chain = tuple[PhysicalOp, ...]


def decide(node: PhysicalOp, strategy: Strategy, rule: str) -> PhysicalOp:
    """The operator, to be run so by a rule; itself where it is already."""
    if strategy == node.strategy:
        return node
    by = node.rules if rule in node.rules else (*node.rules, rule)
    return replace(node, strategy=strategy, rules=by, implementation=implementation(node.op, strategy))


def each(plan: PhysicalPlan, change: Callable[[PhysicalOp], PhysicalOp]) -> PhysicalPlan:
    """The plan with `change` made to every operator, those inside others first; itself where nothing changed."""
    return with_ops(plan, _each(plan.ops, change))


def each_chain(plan: PhysicalPlan, change: Callable[[Chain], Chain]) -> PhysicalPlan:
    """The plan with `change` made to every chain of operators, the inner ones first; itself where nothing changed."""
    return with_ops(plan, _chains(plan.ops, change))


def with_ops(plan: PhysicalPlan, ops: Chain) -> PhysicalPlan:
    """The plan with these operators; itself where they are its own."""
    return plan if _same(ops, plan.ops) else replace(plan, ops=ops)


def with_inner(node: PhysicalOp, body: Chain, arms: tuple[Chain, ...]) -> PhysicalOp:
    """The operator with these inside it; itself where they are its own."""
    if _same(body, node.body) and all(map(_same, arms, node.arms)):
        return node
    return replace(node, body=body, arms=arms)


def _each(chain: Chain, change: Callable[[PhysicalOp], PhysicalOp]) -> Chain:
    return tuple(
        change(with_inner(node, _each(node.body, change), tuple(_each(arm, change) for arm in node.arms)))
        for node in chain
    )


def _chains(chain: Chain, change: Callable[[Chain], Chain]) -> Chain:
    return change(
        tuple(
            with_inner(node, _chains(node.body, change), tuple(_chains(arm, change) for arm in node.arms))
            for node in chain
        )
    )


def _same(one: Chain, other: Chain) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
