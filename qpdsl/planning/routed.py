"""A plan that leaves to a router how the heads of its steps are computed."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.errors import UsageError
from qpdsl.planner.optimize.optimizer import Optimized
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalPlan, Strategy, everything
from qpdsl.planner.plan.rewrite import with_strategies

NONE = "none"


def routed(plan: PhysicalPlan, router: str | None) -> PhysicalPlan:
    """The plan with a learned router for each head that may be sparse; itself without a router, or without such heads.

    `router`: as `Routing.named` takes it, or None.
    """
    if router in (None, NONE):
        return plan
    strategies: dict[str, Strategy] = {}
    for node in everything(plan.ops):
        strategy = node.strategy
        if isinstance(strategy, GenerateStrategy) and strategy.decode.head == "sparse":
            strategies[node.id] = replace(strategy, decode=replace(strategy.decode, router="learned"))
    return with_strategies(plan, strategies)


def with_router(optimized: Optimized, router: str | None) -> Optimized:
    """The same with the plan to run `routed`."""
    plan = routed(optimized.plan, router)
    return optimized if plan is optimized.plan else replace(optimized, routed=plan)


def check_routed(plan: PhysicalPlan, router: str | None) -> None:
    """Raises UsageError where a router is asked for, and the plan leaves nothing to one."""
    if router not in (None, NONE) and not is_routed(plan):
        why = "a `generate … as …` with a schema, a regex or a grammar has, unless its rule `sparse_logits` is off"
        raise UsageError(f"`--router`: no step of `{plan.name}` leaves a choice to a router", why)


def is_routed(plan: PhysicalPlan) -> bool:
    """Whether a router has anything to decide in it."""
    strategies = [node.strategy for node in everything(plan.ops)]
    return any(isinstance(strategy, GenerateStrategy) and strategy.decode.routed for strategy in strategies)
