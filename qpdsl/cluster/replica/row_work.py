"""Rows as the work of a replica: it runs those that it gets, several at a time, and tells what came of each."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qpdsl.cluster.replica.messages import (
    Begun,
    Command,
    Done,
    GaveBack,
    GiveBack,
    ReplicaMessage,
    ReplicaSetup,
    Stop,
    Take,
    Task,
)
from qpdsl.errors import UsageError
from qpdsl.runs.job import Job, run_row
from qpdsl.runs.runner import Limits, RowQueue, row_limits, start_rows
from qpdsl.session.settings import SessionSettings

if TYPE_CHECKING:
    from qpdsl.executor.models.text_model import TextModel
    from qpdsl.session.session import Session


def setup_of_rows(
    jobs: Sequence[Job], settings: SessionSettings, *, concurrency: int | None = None, **more: Any
) -> ReplicaSetup:
    """What replicas need to run rows of these jobs; `more` is for `ReplicaSetup.of`.

    Raises UsageError for a job that cannot be sent to another process.
    """
    if jobs:
        settings = settings.for_plan(jobs[0].plan)
    try:
        return ReplicaSetup.of(RowWork(tuple(jobs), concurrency), settings, **more)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        graders = ", ".join(dict.fromkeys(f"`{job.grader.name}`" for job in jobs))
        raise UsageError(
            f"`--cluster`: what is run for a row cannot be sent to replicas (grader {graders}): {error}",
            "leave out `--cluster`",
        ) from error


@dataclass(frozen=True)
class RowWork:
    """A `ReplicaWork`. `concurrency` is how many rows are in flight in each replica, None for what the plans say."""

    jobs: tuple[Job, ...]
    concurrency: int | None

    @property
    def models(self) -> list[str]:
        return [model for job in self.jobs for model in job.models.values()]

    def load(self, session: Session, loaded: Callable[[TextModel, float], None]) -> None:
        """Loads the models of all jobs. Raises ModelError and UsageError."""
        from qpdsl.runs.graders.judge_program import bind_grader

        for job in self.jobs:
            for plan in (job.plan, job.greedy):
                if plan is not None:
                    session.load(plan, loaded)
            bind_grader(job.grader, session)

    def begin(self, session: Session, send: Callable[[ReplicaMessage], None]) -> _Rows:
        return _Rows(self, session, send)


class _Rows:
    def __init__(self, work: RowWork, session: Session, send: Callable[[ReplicaMessage], None]) -> None:
        self._work = work
        self._session = session
        self._send = send
        self._rows: RowQueue[Task] = RowQueue()

    def tell(self, command: Command) -> None:
        match command:
            case Take():
                self._rows.put(*command.tasks)
            case GiveBack():
                self._send(GaveBack(tuple(task.number for task in self._rows.give_back(command.count))))
            case Stop():
                self._rows.close()

    async def run(self) -> None:
        await start_rows(self._session, self._rows, self._limits, self._run_row)

    def _limits(self, task: Task) -> Limits:
        return row_limits(self._work.jobs[task.job].plan, self._work.concurrency)

    async def _run_row(self, task: Task) -> None:
        self._send(Begun(task.number))
        self._send(Done(task.number, await run_row(self._session, self._work.jobs[task.job], task.row)))
