"""The warm-up of a budgeted run: where nothing is known of its strategies, its first rows are run by each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from qpdsl.cli.console import say
from qpdsl.cli.runs.run_options import RunOptions, open_session
from qpdsl.cli.shared_options import grader_for, read_input
from qpdsl.cli.signals import run_until_interrupted
from qpdsl.cli.watched import WatchedProcess
from qpdsl.executor.events.events import EngineStepped
from qpdsl.executor.events.stream import EventStream
from qpdsl.planner.plan.budget_policy import FixedStrategy
from qpdsl.planner.strategies.written_strategies import fixed, strategies_of
from qpdsl.runs.grid import Cell
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import FinishedRow
from qpdsl.runs.runner import LocalRunner
from qpdsl.runs.store.continuing import CellRun
from qpdsl.runs.store.fingerprint import model_digests
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.sweep import Sweep
from qpdsl.session.prepare import PlanUse, Prepared, prepare

# How many rows are run by every strategy; twice as many where one half of them tests what the other was learned from.
WARM_UP_ROWS = 48
# What the runs of a warm-up are called in the list of runs.
SWEEP = "warm-up"


def warm_up_strategies(
    process: WatchedProcess, options: RunOptions, prepared: Prepared, command: Sequence[str]
) -> bool:
    """Whether the first rows of the input were run by every strategy of the program, so there is more to learn from.

    They are where the program is to be run by a policy that was not learned, and enough rows can be graded. Standard
    input is read once, so that there is no warm-up for it; a run that is resumed, or that follows another, has its
    policy, and one on replicas has no engine here. Raises what the run itself may raise.
    """
    policy = prepared.plan.policy
    if policy is None or options.policy is not None or options.resume or options.cluster is not None:
        return False
    if policy.expected is not None and (policy.promise is None or policy.promise.problems):
        return False
    if options.input in (None, "-"):
        return False
    program, values, surroundings = prepared.program, prepared.values, prepared.bound.surroundings
    ways = strategies_of(program)
    # Each says how sure it is of each row.
    use, settings = PlanUse(alone=True, confidence=True), prepared.settings
    plain = [prepare(replace(prepared.bound, program=fixed(program, way)), settings, use) for way in ways]
    jobs = [Job.of(one, options.seed or 0, with_candidates=False) for one in plain]
    data = read_input(options, jobs[0].plan, values)
    grader = grader_for(options, data, surroundings)
    count = WARM_UP_ROWS if policy.promise is None else 2 * WARM_UP_ROWS
    graded = tuple(islice(filter(grader.applies, data.rows), count))
    if len(graded) < count:
        say(f"no warm-up: it takes {count} rows with a right answer, and there {_are(len(graded))}")
        return False
    first = replace(data, rows=graded)
    jobs = [replace(own, grader=grader) for own in jobs]
    events = EventStream()
    # Whoever watches sees how the engine is doing; its rows are not those of the run.
    events.subscribe(lambda event: process.stream.emit(event) if isinstance(event, EngineStepped) else None)
    process.prepare("loading models")
    session = open_session(options, jobs[0], surroundings, events)
    # What the program itself would be refused for comes before its strategies are run.
    for plan in (prepared.plan, *(own.plan for own in jobs[1:])):
        session.load(plan)

    def run(way: FixedStrategy, own: Job) -> CellRun:
        cell = Cell(program.name, choice=way.name)
        models = model_digests(own.models, lambda: session)
        how: dict[str, Any] = {"python": surroundings.python, "sweep": SWEEP, "command": command}
        return CellRun.of(cell, own, first, values, options, models=models, **how)

    folder = RunFolder()
    sweep = Sweep([run(way, own) for way, own in zip(ways, jobs, strict=True)], lambda run: run.begin(folder))
    what = f"warming up {len(jobs)} strategies on {len(first.rows)} rows"
    say(f"no statistics yet: {what}, apart from the budget")

    def saved(rows: Sequence[FinishedRow]) -> None:
        process.prepare(f"{what}: {sweep.done:,} of {sweep.total:,}")

    sweep.saved = saved
    process.prepare(what)
    sweep.run(lambda: LocalRunner(session, jobs, calls=sweep.calls_of), run_until_interrupted)
    say(f"warm-up: {sweep.sampled:,} tokens; `qpdsl runs` lists its runs")
    return True


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count or 'none'}"
