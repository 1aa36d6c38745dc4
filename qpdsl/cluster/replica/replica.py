"""A replica: it loads what it was told, runs the rows that it gets, several at a time, and tells what came of each."""

from __future__ import annotations

import asyncio
import os
import pickle
import platform
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from qpdsl.cluster.replica.event_thinning import EVERY_SECONDS, EventThinning
from qpdsl.cluster.replica.messages import (
    Begun,
    Command,
    Done,
    Ended,
    Failed,
    GaveBack,
    GiveBack,
    Happened,
    Message,
    Ready,
    ReplicaSetup,
    Said,
    Stop,
    Take,
    Task,
)
from qpdsl.cluster.replica.replica_fingerprint import replica_fingerprint
from qpdsl.errors import UsageError
from qpdsl.runs.job import Job, run_row
from qpdsl.runs.runner import Limits, RowQueue, row_limits, start_rows

if TYPE_CHECKING:
    from qpdsl.executor.models.text_model import TextModel
    from qpdsl.executor.runtime.instance.functions import PythonFunction
    from qpdsl.session.session import Session


class Replica:
    """Commands come by `tell`, in the event loop that `run` runs in; messages go to `send`, from there too."""

    def __init__(self, name: str, setup: ReplicaSetup, send: Callable[[Message], None]) -> None:
        self._name = name
        self._setup = setup
        self._send = send
        self._rows: RowQueue[Task] = RowQueue()
        self._functions: Collection[PythonFunction] = ()

    def tell(self, command: Command) -> None:
        """Takes a command."""
        match command:
            case Take():
                self._rows.put(*command.tasks)
            case GiveBack():
                self._send(GaveBack(tuple(task.number for task in self._rows.give_back(command.count))))
            case Stop():
                self._rows.close()

    async def run(self) -> None:
        """Does all the work, until it is told to stop. An error is told and ends it; nothing is raised."""
        try:
            jobs, python = self._read_setup()
            session = self._load(jobs)
            models = [model for job in jobs for model in job.models.values()]
            fingerprint = replica_fingerprint(models, session.device, python)
            self._send(Ready(platform.node(), os.getpid(), fingerprint, time.monotonic()))
            await self._run_rows(session, jobs)
            self._send(Ended(session.calls))
        except Exception as error:
            self._send(Failed(_portable(error)))

    def _read_setup(self) -> tuple[tuple[Job, ...], str]:
        """The jobs, and a digest of the Python functions, which are loaded first. Raises UsageError."""
        from qpdsl.session.surroundings import read_surroundings

        setup = self._setup
        if os.path.isdir(setup.folder):
            # Names of models may be relative to it.
            os.chdir(setup.folder)
        surroundings = read_surroundings(python=setup.python)
        self._functions = surroundings.functions.values()
        if surroundings.python != setup.python_digest:
            raise UsageError(f"{self._name}: a file of `--python` is not the one that the run was started with")
        jobs: tuple[Job, ...] = pickle.loads(setup.jobs)
        return jobs, surroundings.python

    def _load(self, jobs: tuple[Job, ...]) -> Session:
        """A session with all models loaded. Raises ModelError and UsageError."""
        import torch

        from qpdsl.runs.graders.judge_program import bind_grader
        from qpdsl.session.session import Session

        settings = self._setup.settings
        session = Session.of(settings.for_plan(jobs[0].plan), functions=self._functions, tell=self._say)
        for job in jobs:
            for plan in (job.plan, job.greedy):
                if plan is not None:
                    session.load(plan, self._loaded)
            bind_grader(job.grader, session)
        most = self._setup.threads
        if most is not None and most < torch.get_num_threads():
            torch.set_num_threads(most)
        return session

    def _loaded(self, model: TextModel, seconds: float) -> None:
        for note in model.all_notes:
            self._say(note)

    def _say(self, note: str) -> None:
        self._send(Said(f"note: {note}"))

    async def _run_rows(self, session: Session, jobs: tuple[Job, ...]) -> None:
        def limits(task: Task) -> Limits:
            return row_limits(jobs[task.job].plan, self._setup.concurrency)

        async def run(task: Task) -> None:
            self._send(Begun(task.number))
            self._send(Done(task.number, await run_row(session, jobs[task.job], task.row)))

        thinning = EventThinning(self._name)
        session.events.subscribe(thinning.see)
        async with session.running():
            ticker = asyncio.create_task(self._tell_events(thinning))
            try:
                await start_rows(session, self._rows, limits, run)
            finally:
                ticker.cancel()
                self._tell(thinning.rest())

    async def _tell_events(self, thinning: EventThinning) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            self._tell(thinning.due(time.monotonic()))

    def _tell(self, events: tuple[object, ...]) -> None:
        if events:
            self._send(Happened(events))  # type: ignore[arg-type]


def _portable(error: Exception) -> Exception:
    """The error itself where it can be sent, else one of its class's name and message."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
