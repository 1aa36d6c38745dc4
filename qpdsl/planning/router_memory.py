"""What routers learned, kept beside the statistics, and what they came to in a run.

A state belongs to a program, a model, a device and a router. It is never required: one that does not fit is left, with
a word. What routes heads has a state, and what routes early exits one for each exit, under a key of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qpdsl.planner.cost.device import Device
from qpdsl.planner.cost.run_figures import ExitRouterFigures, RouterFigures, RouterRegret
from qpdsl.planner.cost.statistics import clock_key, fingerprint
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planning.routed import is_routed, routes_exits
from qpdsl.planning.user_cache import changing_routers, read_routers

if TYPE_CHECKING:
    from qpdsl.executor.engine.step.routed_head import HeadRouter
    from qpdsl.session import Session


@dataclass(frozen=True, slots=True)
class RouterMemory:
    """The states of a session's routers for a plan on a device."""

    session: Session
    plan: PhysicalPlan
    device: Device

    def restore(self, tell: Callable[[str], None]) -> None:
        """Has the models of the plan routed by what earlier runs learned; `tell` gets a line for what does not fit."""
        known = read_routers().states if is_routed(self.plan) else {}
        for model in dict.fromkeys(self.plan.models.values()):
            state = known.get(self._key(model))
            if state is None:
                continue
            try:
                self.session.restore_router(model, state)
            except ValueError as error:
                tell(f"what a router of `{model}` learned is not used: {error}")
        for model in dict.fromkeys(self.plan.models.values()):
            state = known.get(self._exit_key(model)) if routes_exits(self.plan) else None
            try:
                if state is not None:
                    self.session.restore_exits(self.plan, model, state)
            except ValueError as error:
                tell(f"what a router of early exits of `{model}` learned is not used: {error}")

    def keep(self) -> None:
        """Keeps what they have learned by now. Raises UsageError where it cannot be written."""
        routers = {model: router for model, router in self.session.routers().items() if router.steps}
        if routers:
            with changing_routers() as kept:
                for model, router in routers.items():
                    kept.put(self._key(model), router.state())
        learned = self.session.learned_exits()
        if learned and routes_exits(self.plan):
            with changing_routers() as kept:
                for model, states in learned.items():
                    key = self._exit_key(model)
                    kept.put(key, {**kept.states.get(key, {}), **states})

    def _key(self, model: str) -> str:
        return f"{fingerprint(self.plan)} {model} {clock_key(self.device)} {self.session.routing}"

    def _exit_key(self, model: str) -> str:
        return f"{self._key(model)} exits"


def router_figures(session: Session) -> dict[str, RouterFigures]:
    """What the routers of a session did so far, by their models' ids."""
    return {model: _figures(router) for model, router in session.routers().items() if router.steps}


def exit_router_figures(session: Session) -> dict[str, list[ExitRouterFigures]]:
    """What decided which draws tried their early exits, by their models' ids."""
    return {
        model: [
            ExitRouterFigures(str(router.routing), str(leave), dict(router.draws), router.digest)
            for leave, router in routers.items()
        ]
        for model, routers in session.exit_routers().items()
    }


def _figures(router: HeadRouter) -> RouterFigures:
    from qpdsl.executor.routing.regret import regret

    steps: dict[str, int] = {arm: router.steps[arm] for arm in router.routing.arms}
    total = sum(steps.values())
    known = None
    if router.recorded:
        came = regret(router.recorded_seconds, router.trace().taken, charge=router.spent / total)
        best = router.routing.arms[came.best_fixed]
        sums = (came.static, came.dynamic, came.variation)
        known = RouterRegret(best, came.loss, came.fixed[came.best_fixed], came.oracle, *sums)
    return RouterFigures(str(router.routing), steps, router.seconds, router.spent, known)
