"""What is run for every row of a data set, and running it for many rows at once over one session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from qpdsl.dataset.admission import Admission
from qpdsl.dataset.row_outcome import Outcome, outcome
from qpdsl.inputs.input_row import InputRow
from qpdsl.measures.equal_answer import EqualAnswer
from qpdsl.measures.grader import Grader
from qpdsl.planner.plan.physical import PhysicalPlan

if TYPE_CHECKING:
    from qpdsl.executor.runtime.instance.functions import PythonFunction
    from qpdsl.executor.runtime.run import InstanceResult
    from qpdsl.session import Session

K = TypeVar("K")


@dataclass(frozen=True)
class Job:
    """What is run for each row: a plan and, to compare with, the plan that decodes the same problem greedily.

    `written` is the plan before any rule changed it, and `planned` says in words which rules did: both identify a run
    that is resumed. A row fails after `row_timeout` seconds. `grader` says whether answers are right. `source` is the
    program's text, for the record of the run. `with_candidates`: what came to the last choice is recorded too.
    `functions` are the program's own, by the names that it has for them; they go before the session's.
    """

    plan: PhysicalPlan
    greedy: PhysicalPlan | None
    seed: int
    with_rows: bool = False
    written: PhysicalPlan | None = None
    planned: str = "optimized"
    row_timeout: float | None = None
    grader: Grader = field(default_factory=EqualAnswer)
    source: str = ""
    with_candidates: bool = False
    functions: Mapping[str, PythonFunction] = field(default_factory=dict)

    @property
    def models(self) -> dict[str, str]:
        """Every model that the plans name."""
        return {**(self.greedy.models if self.greedy else {}), **self.plan.models}


async def run_one(session: Session, job: Job, row: InputRow) -> tuple[InstanceResult, InstanceResult | None]:
    """What the program and greedy decoding give for one row, run side by side inside `session.running()`."""
    timeout = job.row_timeout
    program = session.run(
        job.plan,
        row.arguments,
        job.seed,
        row.id,
        functions=job.functions,
        timeout=timeout,
        candidates=job.with_candidates,
    )
    if job.greedy is None:
        return await program, None
    greedy = session.run(job.greedy, row.arguments, job.seed, f"{row.id} greedy", baseline=True, timeout=timeout)
    return await asyncio.gather(program, greedy)


async def run_row(session: Session, job: Job, row: InputRow) -> Outcome:
    """The outcome of one row, run inside `session.running()`. Greedy decoding is left out where it cannot be graded.

    A row's own failure is part of its outcome. Raises RuntimeError where the row was cancelled, and nobody asked for
    that: a task group takes no notice of tasks that are cancelled, so the row would be missing.
    """
    compared = job if job.grader.applies(row) else replace(job, greedy=None)
    try:
        result, greedy = await run_one(session, compared, row)
        return await outcome(row, result, greedy, job.grader, with_rows=job.with_rows)
    except asyncio.CancelledError as error:
        if not _is_cancelled():
            raise RuntimeError(f"row `{row.id}` was cancelled from within") from error
        raise


async def run_rows(
    session: Session,
    job: Job,
    rows: Iterable[tuple[int, InputRow]],
    concurrency: int | None,
    done: Callable[[int, Outcome], None],
) -> None:
    """Runs numbered rows, up to `concurrency` at a time, and calls `done` for each as it ends.

    Without a `concurrency` the plan says when rows start: see `Admission`, with the plan's `floor` and `in_flight`. A
    plan that does not say how many runs one at a time. Greedy decoding is run for the rows that have a reference. An
    error of `done` ends the run; a row's own failure is part of its outcome. `done` is called once for every row, or
    else this raises.
    """
    await run_tasks(session, ((number, job, row) for number, row in rows), concurrency, done)


async def run_tasks(
    session: Session,
    tasks: Iterable[tuple[K, Job, InputRow]],
    concurrency: int | None,
    done: Callable[[K, Outcome], None],
) -> None:
    """`run_rows` for rows of several jobs, each under a key of its own.

    They start in this order, a row as the plan of its own job says. `tasks` is read as they start.
    """
    async with session.running():
        await run_tasks_inside(session, tasks, concurrency, done)


async def run_tasks_inside(
    session: Session,
    tasks: Iterable[tuple[K, Job, InputRow]],
    concurrency: int | None,
    done: Callable[[K, Outcome], None],
) -> None:
    """`run_tasks` inside `session.running()`."""
    admission = Admission()

    async def run(key: K, job: Job, row: InputRow) -> None:
        try:
            done(key, await run_row(session, job, row))
        finally:
            admission.leave()

    try:
        async with asyncio.TaskGroup() as group:
            for key, job, row in tasks:
                in_flight = job.plan.in_flight or 1 if concurrency is None else concurrency
                admission.limit(job.plan.floor if concurrency is None else 0, in_flight)
                await admission.wait(session)
                group.create_task(run(key, job, row))
                await session.settled()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def _is_cancelled() -> bool:
    """Whether somebody has cancelled the task that runs."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
