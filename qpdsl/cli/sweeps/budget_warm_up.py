"""The warm-up of a budgeted run: where nothing is known of a program's ways, its first rows are run by each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from qpdsl.cli.console import say
from qpdsl.cli.options.input_options import read_input
from qpdsl.cli.runs.run_options import RunOptions, open_session
from qpdsl.cli.signals import run_until_interrupted
from qpdsl.dataset.job import Job
from qpdsl.executor.events.stream import EventStream
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.values.value import Value
from qpdsl.planner.ways.open_program import fixed, ways_of
from qpdsl.planning.planning import Planning, reads_of
from qpdsl.planning.target import Target
from qpdsl.run_store.description import run_record
from qpdsl.run_store.fingerprint import run_fingerprint
from qpdsl.run_store.model_digests import model_digests
from qpdsl.run_store.run_folder import RunFolder
from qpdsl.sources.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.dataset.row_outcome import Outcome


def warm_up_ways(
    options: RunOptions,
    job: Job,
    program: LogicalProgram,
    planning: Planning,
    target: Target,
    surroundings: Surroundings,
    values: Mapping[str, Value],
    command: Sequence[str],
) -> bool:
    """Whether the first rows of the input were run by every way of `program`, so that there is more to learn from.

    They are where `job` is to be run by a policy that was not learned, and enough rows can be graded. Standard input is
    read once, so that there is no warm-up for it; a run that is resumed has its policy, and one on replicas has no
    engine here. Raises what the run itself may raise.
    """
    policy = job.plan.policy
    if policy is None or policy.expected is not None or options.resume or options.cluster is not None:
        return False
    if options.input in (None, "-"):
        return False
    from qpdsl.budgets.warm_up import warm_up, warm_up_data

    jobs = [_job(fixed(program, way), job, planning, target) for way in ways_of(program)]
    data = read_input(options, jobs[0].plan, values)
    grader = options.grader_for(data, surroundings, allow_code=options.allow_code)
    first = warm_up_data(data, grader)
    if first is None:
        return False
    jobs = [replace(own, grader=grader) for own in jobs]
    session = open_session(options, jobs[0], surroundings, EventStream())
    for own in jobs[1:]:
        session.load(own.plan)
    records = [
        run_record(
            own,
            first,
            values,
            run_fingerprint(
                own,
                values,
                options.computing,
                models=model_digests(own.models, lambda: session),
                python=surroundings.python,
            ),
            command=command,
        )
        for own in jobs
    ]
    say(f"nothing was learned of this program's ways yet: {len(first.rows)} rows are run by each of {len(jobs)}")
    spent: list[Outcome] = []
    run_until_interrupted(warm_up(session, jobs, records, first, RunFolder(), spent.append))
    tokens = sum(outcome.tokens_out for outcome in spent)
    say(f"warm-up: {tokens:,} tokens, apart from the budget; `qpdsl runs` lists its runs")
    return True


def _job(way: LogicalProgram, job: Job, planning: Planning, target: Target) -> Job:
    """The plain run of one way. It says how sure it is of each row."""
    optimized = planning.optimized(way, reads_of(way), target, support=True)
    return Job(
        optimized.plan,
        None,
        job.seed,
        written=optimized.naive,
        planned=job.planned,
        row_timeout=job.row_timeout,
        source=job.source,
    )
