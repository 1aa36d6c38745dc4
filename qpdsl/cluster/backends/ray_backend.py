"""Replicas that are Ray actors: of a Ray that is started here, on this machine alone, or of one that runs.

An actor is never started again by Ray: the driver does that, since it knows which rows are to run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import threading
from dataclasses import replace
from typing import Any

from qpdsl.cluster.backends.backend import Link, ReplicaLost
from qpdsl.cluster.backends.process_backend import share_of_machine
from qpdsl.cluster.replica.messages import Command, ReplicaMessage, ReplicaSetup
from qpdsl.cluster.replica.replica import Replica
from qpdsl.errors import UsageError, installing, shorten
from qpdsl.threads import cores

# Calls that an actor may have to answer at one time.
_CALLS = 1000


class RayBackend:
    """Actors with `cpus` cores and `gpus` GPUs each, of the Ray at `place`, or of one that is started for `most` here.

    Raises UsageError where the library is missing or the Ray at `place` does not answer.
    """

    def __init__(self, most: int, place: str | None, cpus: float | None, gpus: float | None) -> None:
        self._ray = _library()
        self._most = most
        self._here = place is None
        self._cpus = cpus if cpus is not None else (1.0 if place else 0.0)
        self._gpus = gpus or 0.0
        started = {"num_cpus": max(cores(), int(self._cpus * most)), "include_dashboard": False}
        address = {"address": f"ray://{place}"} if place else {"address": "local", "_node_ip_address": "127.0.0.1"}
        # Ray would end the process at once, where a command has rows to keep.
        handled = signal.getsignal(signal.SIGTERM)
        try:
            self._ray.init(**address, **({} if place else started), logging_level="ERROR", log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise UsageError(
                f"`--cluster {'ray://' + place if place else 'ray'}`: {shorten(str(error), 200)}",
                "`ray status` on a machine of the cluster says whether it runs",
            ) from error
        finally:
            if handled is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handled)

    async def start(self, name: str, number: int, setup: ReplicaSetup) -> Link:
        if self._here:
            setup = share_of_machine(setup, self._most)
        elif setup.threads is None and self._cpus >= 1:
            setup = replace(setup, threads=int(self._cpus))
        gpus = self._gpus or (1.0 if setup.settings.device.startswith("cuda") else 0.0)
        actor = self._ray.remote(
            num_cpus=self._cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0, max_concurrency=_CALLS
        )(ReplicaActor)
        try:
            return _RayLink(name, self._ray, actor.remote(name, pickle.dumps(setup)))
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise ReplicaLost(f"{name} cannot be started: {shorten(str(error), 200)}") from error

    async def close(self) -> None:
        await asyncio.to_thread(self._ray.shutdown)


class _RayLink:
    """Fetches what the actor has to say, as much as there is at a time."""

    def __init__(self, name: str, ray: Any, actor: Any) -> None:
        self._name = name
        self._ray = ray
        self._actor = actor
        self._fetched: list[ReplicaMessage] = []

    def send(self, command: Command) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError, ConnectionError):
            self._actor.tell.remote(pickle.dumps(command))

    async def receive(self) -> ReplicaMessage:
        while not self._fetched:
            try:
                packed = await self._actor.said.remote()
            except (self._ray.exceptions.RayError, ConnectionError) as error:
                raise ReplicaLost(f"{self._name} is lost: {shorten(str(error), 200)}") from error
            self._fetched = list(reversed(pickle.loads(packed)))
        return self._fetched.pop()

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            # An actor that is gone already cannot be ended.
            await asyncio.to_thread(self._ray.kill, self._actor)


class ReplicaActor:
    """A replica, with two methods between its caller and its event loop.

    `tell` takes a pickled command, `said` gives a pickled list of messages, at least one.
    """

    def __init__(self, name: str, setup: bytes) -> None:
        self._name = name
        self._setup: ReplicaSetup = pickle.loads(setup)
        if self._setup.threads is not None:
            # Ray sets it by what it reserves, which says nothing of what is there. Torch has not been loaded yet.
            os.environ.pop("OMP_NUM_THREADS", None)
        self._outbox: asyncio.Queue[ReplicaMessage] = asyncio.Queue()
        self._replica: Replica | None = None
        self._running: asyncio.Task[None] | None = None

    async def tell(self, command: bytes) -> None:
        self._begun().tell(pickle.loads(command))

    async def said(self) -> bytes:
        self._begun()
        messages = [await self._outbox.get()]
        while not self._outbox.empty():
            messages.append(self._outbox.get_nowait())
        return pickle.dumps(messages)

    def _begun(self) -> Replica:
        """The replica, which begins to load with the first call: only then is there an event loop."""
        if self._replica is None:
            self._replica = Replica(self._name, self._setup, self._outbox.put_nowait)
            self._running = asyncio.create_task(self._replica.run())
        return self._replica


def _library() -> Any:
    """Ray, which reports nothing to anybody. Raises UsageError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # An actor without a GPU keeps what the machine shows of them, as later versions of Ray have it.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise UsageError("`--cluster ray:…` needs Ray", installing("ray")) from error
    return ray
