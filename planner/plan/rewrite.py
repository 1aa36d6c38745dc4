"""Walking and changing physical plans: every function returns the plan itself where nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, Strategy, everything

Chain = tuple[PhysicalOp, ...]


def decide(node: PhysicalOp, strategy: Strategy, rule: str) -> PhysicalOp:
    """The operator, to be run with this strategy by the decision of a rule."""
    if strategy == node.strategy:
        return node
    return replace(node, strategy=strategy, rules=node.rules if rule in node.rules else (*node.rules, rule))


def with_strategies(plan: PhysicalPlan, strategies: Mapping[str, Strategy]) -> PhysicalPlan:
    """The plan with operators, by their ids, to be run with these strategies."""

    def changed(node: PhysicalOp) -> PhysicalOp:
        strategy = strategies.get(node.id, node.strategy)
        return node if strategy == node.strategy else replace(node, strategy=strategy)

    return map_operators(plan, changed)


def operator_pairs(plan: PhysicalPlan, other: PhysicalPlan) -> Iterator[tuple[PhysicalOp, PhysicalOp]]:
    """Each operator of a plan beside the same one of a plan that differs from it in strategies alone."""
    return zip(everything(plan.ops), everything(other.ops), strict=True)


def map_operators(plan: PhysicalPlan, change: Callable[[PhysicalOp], PhysicalOp]) -> PhysicalPlan:
    """The plan with `change` made to every operator, those inside others first."""
    return map_chains(plan, lambda chain: tuple(change(node) for node in chain))


def map_chains(plan: PhysicalPlan, change: Callable[[Chain], Chain]) -> PhysicalPlan:
    """The plan with `change` made to every chain of operators, the inner ones first."""

    return with_ops(plan, _mapped(plan.ops, change))


def map_chain(chain: Chain, change: Callable[[PhysicalOp], PhysicalOp]) -> Chain:
    """The operators of a chain and those inside them with `change` made to each, the inner ones first."""
    return _mapped(chain, lambda nodes: tuple(change(node) for node in nodes))


def _mapped(chain: Chain, change: Callable[[Chain], Chain]) -> Chain:
    inner = (
        with_inner(node, _mapped(node.body, change), tuple(_mapped(arm, change) for arm in node.arms)) for node in chain
    )
    return change(tuple(inner))


def with_ops(plan: PhysicalPlan, ops: Chain) -> PhysicalPlan:
    """The plan with these operators."""
    return plan if _same(ops, plan.ops) else replace(plan, ops=ops)


def with_inner(node: PhysicalOp, body: Chain, arms: tuple[Chain, ...]) -> PhysicalOp:
    """The operator with these inside it."""
    if _same(body, node.body) and all(map(_same, arms, node.arms)):
        return node
    return replace(node, body=body, arms=arms)


def _same(chain: Chain, other: Chain) -> bool:
    return len(chain) == len(other) and all(node is twin for node, twin in zip(chain, other, strict=True))
