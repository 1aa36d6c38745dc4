"""One run, watched: what was expected of it, what it came to, and what is remembered of it."""

from __future__ import annotations

from dataclasses import replace

import torch

from qpdsl.caches import read_device, read_statistics, write_statistics
from qpdsl.executor.runtime.measuring import Measuring
from qpdsl.planner.analyze import Analysis
from qpdsl.planner.cost import Estimate, estimate_cost
from qpdsl.planner.device import Device
from qpdsl.planner.pace import Load
from qpdsl.planner.physical import PhysicalPlan
from qpdsl.planner.stats import Statistics, clock_key
from qpdsl.session import Session


class Analyzing:
    """From before a plan runs, its models loaded, until `done`. `in_flight` None: as many problems as the plan says."""

    def __init__(self, session: Session, plan: PhysicalPlan, problems: int, in_flight: int | None = None) -> None:
        self.plan = plan
        self._device = device_of(session)
        self._load = load_of(session, problems, in_flight)
        self._estimate = estimate_cost(plan, self._device, read_statistics(), self._load)
        self._measuring = Measuring(session.kv_page_bytes, session.kv_budget)
        session.events.subscribe(self._measuring.see)

    def done(self, *, remember: bool = True) -> Analysis:
        """What it came to; the statistics take it in unless told otherwise."""
        figures = self._measuring.figures()
        if remember and figures.problems > figures.failed:
            statistics = read_statistics()
            load = replace(self._load, problems=figures.problems)
            learn(statistics, Analysis(self.plan, figures, self._estimate), self._device, load)
            write_statistics(statistics)
        return Analysis(self.plan, figures, self._estimate)


def learn(statistics: Statistics, analysis: Analysis, device: Device, load: Load) -> None:
    """Takes a run into the statistics, and by how much the seconds would be off knowing what it came to."""
    plan, figures = analysis.plan, analysis.figures
    statistics.add(plan, figures)
    known: Estimate = estimate_cost(plan, device, statistics, load)
    raw = known.seconds / (known.clock or 1.0)
    if raw > 0:
        key = clock_key(device.kind, device.dtype, device.threads)
        statistics.add_clock(plan, key, figures.seconds / raw)


def device_of(session: Session) -> Device:
    """The device that a session runs on, as it was measured; nominal where it never was."""
    return read_device(session.device, session.computes_in, torch.get_num_threads())


def load_of(session: Session, problems: int, in_flight: int | None = None) -> Load:
    """What a session can hold and do at once."""
    limits = session.limits
    return Load(problems, in_flight, session.kv_budget, limits.max_sequences, limits.token_budget)
