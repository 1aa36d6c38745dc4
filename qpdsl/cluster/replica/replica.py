"""A replica: it loads what it was told, runs the rows that it gets, several at a time, and tells what came of each."""

from __future__ import annotations

import asyncio
import os
import pickle
import platform
import time
from collections import deque
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
    Said,
    Stop,
    Take,
    Task,
)
from qpdsl.cluster.replica.replica_fingerprint import replica_fingerprint
from qpdsl.cluster.replica.replica_setup import ReplicaSetup
from qpdsl.dataset.admission import Admission
from qpdsl.dataset.job import Job, run_row
from qpdsl.errors import UsageError

if TYPE_CHECKING:
    from qpdsl.executor.models.text_model import TextModel
    from qpdsl.executor.runtime.instance.functions import PythonFunction
    from qpdsl.session import Session


class Replica:
    """Commands come by `tell`, in the event loop that `run` runs in; messages go to `send`, from there too."""

    def __init__(self, name: str, setup: ReplicaSetup, send: Callable[[Message], None]) -> None:
        self._name = name
        self._setup = setup
        self._send = send
        self._waiting: deque[Task] = deque()
        self._changed = asyncio.Event()
        self._stopped = False
        self._functions: Collection[PythonFunction] = ()

    def tell(self, command: Command) -> None:
        """Takes a command."""
        match command:
            case Take():
                self._waiting.extend(command.tasks)
            case GiveBack():
                back = [self._waiting.pop().number for _ in range(min(command.count, len(self._waiting)))]
                self._send(GaveBack(tuple(back)))
            case Stop():
                self._stopped = True
        self._changed.set()

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
        from qpdsl.sources.surroundings import read_surroundings

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

        from qpdsl.measures.graders.judge_program import bind_grader
        from qpdsl.session import Session

        settings = dict(self._setup.settings)
        kv_type = settings.pop("kv_type", None) or jobs[0].plan.kv_type
        session = Session(**settings, kv_type=kv_type, functions=self._functions, tell=self._say)
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
        for note in model.notes:
            self._say(note)

    def _say(self, note: str) -> None:
        self._send(Said(f"note: {note}"))

    async def _run_rows(self, session: Session, jobs: tuple[Job, ...]) -> None:
        admission = Admission()
        thinning = EventThinning(self._name)
        session.events.subscribe(thinning.see)
        async with session.running():
            ticker = asyncio.create_task(self._tell_events(thinning))
            try:
                async with asyncio.TaskGroup() as group:
                    while await self._has_rows():
                        self._limit(admission, jobs[self._waiting[0].job])
                        await admission.wait(session)
                        if not self._waiting:
                            # They were given back in the meantime.
                            admission.leave()
                            continue
                        task = self._waiting.popleft()
                        self._send(Begun(task.number))
                        group.create_task(self._run_row(session, jobs[task.job], task, admission))
                        await session.settled()
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None
            finally:
                ticker.cancel()
                self._tell(thinning.rest())

    async def _has_rows(self) -> bool:
        """Waits for a row to begin; false where there will be none."""
        while not self._waiting and not self._stopped:
            self._changed.clear()
            await self._changed.wait()
        return bool(self._waiting)

    def _limit(self, admission: Admission, job: Job) -> None:
        """Has the next row start as the plan of its job says, or as the run does."""
        concurrency = self._setup.concurrency
        floor, in_flight = (job.plan.floor, job.plan.in_flight or 1) if concurrency is None else (0, concurrency)
        admission.limit(floor, in_flight)

    async def _run_row(self, session: Session, job: Job, task: Task, admission: Admission) -> None:
        try:
            self._send(Done(task.number, await run_row(session, job, task.row)))
        finally:
            admission.leave()

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
