"""One run, watched: what was expected of it, what it came to, and what is remembered of it."""

from __future__ import annotations

from dataclasses import replace

import torch

from qpdsl.executor.measure.run import Measuring
from qpdsl.planner.cost.device import Device
from qpdsl.planner.cost.estimate import Estimate, estimate_cost
from qpdsl.planner.cost.statistics import Statistics, clock_key
from qpdsl.planner.cost.timing import Load
from qpdsl.planner.explain.analyze import Analysis
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planning.store import changing_statistics, read_device, read_statistics
from qpdsl.session import Session

# Fewer problems say nothing about how fast a device is: loading and warming up show in their seconds.
_CLOCKED = 8


class Analyzing:
    """From before a plan runs, its models loaded, until it has. `in_flight` None: as many problems as the plan says."""

    def __init__(self, session: Session, plan: PhysicalPlan, problems: int, in_flight: int | None = None) -> None:
        self.plan = plan
        self._device = device_of(session)
        self._load = load_of(session, problems, in_flight)
        self._estimate = estimate_cost(plan, self._device, read_statistics(), self._load)
        self._measuring = Measuring(session.kv_page_bytes, session.kv_budget)
        session.events.subscribe(self._measuring.see)

    def done(self) -> Analysis:
        """What it came to."""
        return Analysis(self.plan, self._measuring.figures(), self._estimate)

    def remember(self, *, alone: bool, wanted: bool = False) -> None:
        """Has the statistics take in the problems that have ended, of a run that may have been cut short.

        `alone` says that the session ran nothing else meanwhile, so that the seconds are the plan's own; `wanted`, that
        somebody asked for them, so that they count for few problems too. Raises UserError where nothing can be kept.
        """
        analysis = self.done()
        figures = analysis.figures
        if figures.problems > figures.failed:
            whole = figures.problems == self._load.problems and (wanted or figures.problems >= _CLOCKED)
            with changing_statistics() as statistics:
                load = replace(self._load, problems=figures.problems)
                learn(statistics, analysis, self._device, load, clocked=alone and whole)


def learn(statistics: Statistics, analysis: Analysis, device: Device, load: Load, *, clocked: bool = True) -> None:
    """Takes a run into the statistics; `clocked`, also by how much the seconds would be off knowing what it came to."""
    plan, figures = analysis.plan, analysis.figures
    statistics.add(plan, figures)
    if not clocked:
        return
    known: Estimate = estimate_cost(plan, device, statistics, load)
    raw = known.seconds / (known.clock or 1.0)
    if raw > 0:
        statistics.add_clock(plan, clock_key(device), figures.seconds / raw)


def device_of(session: Session) -> Device:
    """The device that a session runs on, as it was measured; nominal where it never was."""
    return read_device(session.device, session.computes_in, torch.get_num_threads())


def load_of(session: Session, problems: int, in_flight: int | None = None) -> Load:
    """What a session can hold and do at once."""
    limits = session.limits
    return Load(problems, in_flight, session.kv_budget, limits.max_sequences, limits.token_budget)
