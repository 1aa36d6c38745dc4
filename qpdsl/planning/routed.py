"""A plan that leaves something to a router: how the heads of its steps are computed, which draws try their exits."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.errors import UsageError
from qpdsl.executor.requests.routing import NO_ROUTER, ExitRouting, Routing
from qpdsl.planner.optimize.optimizer import Optimized
from qpdsl.planner.plan.decode_plan import DecodePlan
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalPlan, Strategy, everything
from qpdsl.planner.plan.rewrite import with_strategies


def routed(plan: PhysicalPlan, router: str | None) -> PhysicalPlan:
    """The plan with a learned router for each head that may be sparse, and for each early exit, that it is one of.

    `router`: as `Routing.named` and `ExitRouting.named` take it, or None. Itself where there is nothing to route.
    """
    if router is None:
        return plan
    heads, exits = Routing.named(router) is not None, ExitRouting.named(router) is not None
    strategies: dict[str, Strategy] = {}
    for node in everything(plan.ops):
        strategy = node.strategy
        if isinstance(strategy, GenerateStrategy):
            decode = replace(strategy.decode, router="learned")
            if (heads and decode.routes_heads) or (exits and decode.routes_exits):
                strategies[node.id] = replace(strategy, decode=decode)
    return with_strategies(plan, strategies)


def with_router(optimized: Optimized, router: str | None) -> Optimized:
    """The same with the plan to run `routed`."""
    plan = routed(optimized.plan, router)
    return optimized if plan is optimized.plan else replace(optimized, routed=plan)


def check_routed(plan: PhysicalPlan, router: str | None) -> None:
    """Raises UsageError where a router is asked for, and the plan leaves nothing to one."""
    if router in (None, NO_ROUTER) or is_routed(plan):
        return
    if any(decode.exits_early for decode in _decodes(plan)):
        if any(decode.exits_early and decode.drafts for decode in _decodes(plan)):
            why = "an early exit beside drafts has none, since all layers check what is drafted: write `draft none`"
        else:
            why = "an early exit has `lin_ucb`, `thompson`, `fixed:exit` and `fixed:full`, in an optimized plan"
    else:
        why = "a `generate … as …` with a schema, a regex or a grammar has one, unless its rule `sparse_logits` is off"
        why += "; so has a `generate … via amortized(…)`, by another router than of heads alone"
    raise UsageError(f"`--router`: no step of `{plan.name}` leaves a choice to a router", why)


def is_routed(plan: PhysicalPlan) -> bool:
    """Whether a router has anything to decide in it."""
    return any(decode.routed for decode in _decodes(plan))


def routes_exits(plan: PhysicalPlan) -> bool:
    """Whether its tokens depend on what a router knows."""
    return any(decode.routes_exits for decode in _decodes(plan))


def _decodes(plan: PhysicalPlan) -> list[DecodePlan]:
    strategies = [node.strategy for node in everything(plan.ops)]
    return [strategy.decode for strategy in strategies if isinstance(strategy, GenerateStrategy)]
