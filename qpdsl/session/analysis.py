"""The analysis of a run: what was estimated, what was measured, and what the statistics learn from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import torch

from qpdsl.executor.events.events import Estimated, OperatorEstimate
from qpdsl.executor.measure.run_meter import RunMeter
from qpdsl.planner.cost.device import SOURCE_WORDS, Device
from qpdsl.planner.cost.estimate import Estimate, estimate_cost
from qpdsl.planner.cost.run_figures import ExitRouterFigures, RouterFigures, RunFigures
from qpdsl.planner.cost.statistics import (
    OperatorStatistics,
    ProgramStatistics,
    Statistics,
    clock_key,
    device_key,
    fingerprint,
)
from qpdsl.planner.cost.timing import RunLoad
from qpdsl.planner.explain.analyze import Analysis
from qpdsl.planner.explain.plan import in_words
from qpdsl.planner.plan.physical import Cost, PhysicalPlan, everything
from qpdsl.session.planning import is_routed, routes_exits
from qpdsl.session.session import Session
from qpdsl.session.timed_models import keep_times
from qpdsl.session.user_cache import changing_routers, changing_statistics, read_device, read_routers, read_statistics

if TYPE_CHECKING:
    from qpdsl.executor.engine.step.routed_head import HeadRouter
    from qpdsl.session.session import Session

# The seconds of fewer problems say nothing about the device: they include the time that it takes to warm up.
_CLOCKED = 8


class RunAnalysis:
    """Measures a run. It is made before the plan runs, when its models are loaded.

    `problems` is how many the run has; `in_flight` is how many run at once, None for as many as the plan says.
    """

    def __init__(self, session: Session, plan: PhysicalPlan, problems: int, in_flight: int | None = None) -> None:
        self.plan = plan
        self._device = device_of(session)
        self._load = load_of(session, problems, in_flight)
        statistics = read_statistics()
        self._estimate = estimate_cost(plan, self._device, statistics, self._load)
        self._implementations = session.implementations
        self._session = session
        self._routers = RouterMemory(session, plan, self._device)
        self._measuring = RunMeter(session.kv_page_bytes, session.kv_budget)
        session.events.subscribe(self._measuring.see, patient=True)
        session.events.emit(_estimated(plan, self._estimate, statistics.of(plan)))

    def done(self) -> Analysis:
        """The figures so far, with the estimate beside them."""
        figures, routers = self._figures(), router_figures(self._session)
        exits = exit_router_figures(self._session)
        return Analysis(self.plan, figures, self._estimate, self._implementations, routers, exits)

    def warm_start(self, tell: Callable[[str], None]) -> None:
        """Has the session's routers begin with what earlier runs learned; `tell` gets lines of what does not fit."""
        self._routers.restore(tell)

    def remember(self, *, alone: bool, wanted: bool = False) -> None:
        """Adds the problems that have ended to the statistics; the run may have been cut short.

        `alone` says that the session ran nothing else meanwhile, so that the seconds are those of the plan; `wanted`
        that the user asked for an analysis, so that the seconds of few problems count too. Raises UserError where the
        statistics cannot be written.
        """
        figures = self._figures()
        if figures.problems > figures.failed:
            session = self._session
            keep_times(self._measuring.times, session.models_here, session.device, session.computes_in)
            # Later runs are estimated by what is known of the device from now on, so the clock is for these figures.
            self._device = device_of(session)
            with changing_statistics() as statistics:
                self._learn(statistics, alone=alone, wanted=wanted)
            self._routers.keep()

    def own_statistics(self, *, alone: bool, wanted: bool = False) -> Statistics:
        """The statistics of the problems that have ended, by themselves; see `remember`."""
        statistics = Statistics()
        self._learn(statistics, alone=alone, wanted=wanted)
        return statistics

    def _figures(self) -> RunFigures:
        self._session.events.deliver()
        return self._measuring.figures()

    def _learn(self, statistics: Statistics, *, alone: bool, wanted: bool) -> None:
        analysis = self.done()
        problems = analysis.figures.problems
        whole = problems == self._load.problems and (wanted or problems >= _CLOCKED)
        load = replace(self._load, problems=problems)
        learn(statistics, analysis, self._device, load, clocked=alone and whole)


def _estimated(plan: PhysicalPlan, estimate: Estimate, known: ProgramStatistics | None) -> Estimated:
    """`known`: what earlier runs of the very program came to."""
    operators = {} if known is None else known.operators
    return Estimated(
        operators={
            node.id: _of_operator(estimate, node.id, operators.get(node.id))
            for node in everything(plan.ops)
            if node.id in estimate.rows
        },
        seconds=estimate.seconds,
        in_flight=estimate.in_flight,
        kv_bytes=estimate.kv_bytes,
        source=estimate.source,
        device=SOURCE_WORDS[estimate.device],
        clock=estimate.clock,
        seen=0 if known is None else known.problems,
    )


def _of_operator(estimate: Estimate, id: str, known: OperatorStatistics | None) -> OperatorEstimate:
    problems = max(estimate.load.problems, 1)
    cost = None if (whole := estimate.costs.get(id)) is None else asdict(Cost.of([whole], problems))
    return OperatorEstimate(
        rows=estimate.rows[id] / problems,
        rounds=estimate.rounds.get(id),
        rows_deviation=None if known is None else known.deviation(known.rows_out, "rows"),
        tokens_deviation=None if known is None else known.deviation(known.tokens, "tokens"),
        **cost or {},
    )


def learn(statistics: Statistics, analysis: Analysis, device: Device, load: RunLoad, *, clocked: bool = True) -> None:
    """Adds a run to the statistics.

    With `clocked` they also learn the factor between the seconds measured and the seconds estimated from the run's own
    figures. The seconds of a plan that asks a server are not the device's.
    """
    plan, figures = analysis.plan, analysis.figures
    statistics.add(plan, figures, {node.id: in_words(node.op) for node in everything(plan.ops)})
    if not clocked or plan.has_remote():
        return
    known: Estimate = estimate_cost(plan, device, statistics, load)
    raw = (known.seconds or 0.0) / (known.clock or 1.0)
    if raw > 0:
        statistics.add_clock(plan, clock_key(device), figures.seconds / raw)


def device_of(session: Session) -> Device:
    """The device that a session runs on, as it was measured; nominal where it never was."""
    return read_device(session.device, session.computes_in, torch.get_num_threads())


def load_of(session: Session, problems: int, in_flight: int | None = None) -> RunLoad:
    """How much a session has to do, and how much it can hold and do at once."""
    limits = session.limits
    return RunLoad(problems, in_flight, session.kv_budget, limits.max_sequences, limits.token_budget)


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
                    self.session.exits.restore(self.plan, model, state)
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
        return f"{fingerprint(self.plan)} {model} {device_key(self.device)} {self.session.routing}"

    def _exit_key(self, model: str) -> str:
        return f"{self._key(model)} exits"


def router_figures(session: Session) -> dict[str, RouterFigures]:
    """What the routers of a session did so far, by their models' ids."""
    return {model: _figures(router) for model, router in session.routers().items() if router.steps}


def exit_router_figures(session: Session) -> dict[str, list[ExitRouterFigures]]:
    """What decided which draws tried their early exits, by their models' ids."""
    return {
        model: [
            ExitRouterFigures(
                str(router.routing),
                str(leave),
                {str(arm): count for arm, count in router.draws.items()},
                router.digest,
                router.spent,
            )
            for leave, router in routers.items()
        ]
        for model, routers in session.exit_routers().items()
    }


def _figures(router: HeadRouter) -> RouterFigures:
    steps: dict[str, int] = {arm: router.steps[arm] for arm in router.routing.arms}
    return RouterFigures(str(router.routing), steps, router.seconds, router.spent)
