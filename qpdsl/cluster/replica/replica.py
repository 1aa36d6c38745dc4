"""A replica: it loads what it was told, does the work that it gets, and tells what came of it."""

from __future__ import annotations

import asyncio
import os
import pickle
import platform
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from qpdsl.cluster.replica.event_thinning import EVERY_SECONDS, EventThinning
from qpdsl.cluster.replica.messages import Command, Ended, Failed, Happened, Ready, ReplicaMessage, ReplicaSetup, Said
from qpdsl.cluster.replica.replica_fingerprint import replica_fingerprint
from qpdsl.errors import UsageError

if TYPE_CHECKING:
    from qpdsl.executor.models.text_model import TextModel
    from qpdsl.executor.runtime.instance.functions import PythonFunction
    from qpdsl.session.session import Session


class ReplicaWork(Protocol):
    """What a replica is for: rows of a run, or requests to a server. It can be pickled."""

    @property
    def models(self) -> Collection[str]:
        """The ids of the models that are loaded."""

    def load(self, session: Session, loaded: Callable[[TextModel, float], None]) -> None:
        """Loads them. Raises ModelError and UsageError."""

    def begin(self, session: Session, send: Callable[[ReplicaMessage], None]) -> Worker:
        """What does the work, once all models are loaded."""


class Worker(Protocol):
    """Work that is being done by the models of one session."""

    def tell(self, command: Command) -> None:
        """Takes a command."""

    async def run(self) -> None:
        """Does what is asked for, while the engine steps, until it is told to stop."""


class Replica:
    """Commands come by `tell`, in the event loop that `run` runs in; messages go to `send`, from there too."""

    def __init__(self, name: str, setup: ReplicaSetup, send: Callable[[ReplicaMessage], None]) -> None:
        self._name = name
        self._setup = setup
        self._send = send
        self._worker: Worker | None = None

    def tell(self, command: Command) -> None:
        """Takes a command, which is sent to a replica that is ready."""
        assert self._worker is not None
        self._worker.tell(command)

    async def run(self) -> None:
        """Does all the work, until it is told to stop. An error is told and ends it; nothing is raised."""
        try:
            session, work, python = self._load()
            self._worker = work.begin(session, self._send)
            fingerprint = replica_fingerprint(work.models, session.device, python)
            self._send(Ready(platform.node(), os.getpid(), fingerprint, time.monotonic()))
            await self._run(session, self._worker)
            self._send(Ended(session.calls))
        except Exception as error:
            self._send(Failed(portable(error)))

    def _load(self) -> tuple[Session, ReplicaWork, str]:
        """A session with all models loaded, the work, and a digest of the Python functions, which are loaded first.

        Raises ModelError and UsageError.
        """
        import torch

        from qpdsl.session.session import Session
        from qpdsl.session.surroundings import read_surroundings

        setup = self._setup
        if os.path.isdir(setup.folder):
            # Names of models may be relative to it.
            os.chdir(setup.folder)
        surroundings = read_surroundings(python=setup.python)
        if surroundings.python != setup.python_digest:
            raise UsageError(f"{self._name}: a file of `--python` is not the one that the run was started with")
        work: ReplicaWork = pickle.loads(setup.work)
        functions: Collection[PythonFunction] = surroundings.functions.values()
        how = {"functions": functions, "tell": self._say, "outlive_servers": setup.outlive_servers}
        session = Session.of(setup.settings, **how)
        work.load(session, self._loaded)
        if setup.threads is not None and setup.threads < torch.get_num_threads():
            torch.set_num_threads(setup.threads)
        return session, work, surroundings.python

    def _loaded(self, model: TextModel, seconds: float) -> None:
        for note in model.all_notes:
            self._say(note)

    def _say(self, note: str) -> None:
        self._send(Said(f"note: {note}"))

    async def _run(self, session: Session, worker: Worker) -> None:
        thinning = EventThinning(self._name)
        session.events.subscribe(thinning.see)
        async with session.running():
            ticker = asyncio.create_task(self._tell_events(thinning))
            try:
                await worker.run()
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


def portable(error: Exception) -> Exception:
    """The error itself where it can be sent, else one of its class's name and message."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
