"""A replica as an actor: two methods between its caller and its event loop. Ray is not imported here."""

from __future__ import annotations

import asyncio
import os
import pickle

from qpdsl.cluster.replica.messages import Message
from qpdsl.cluster.replica.replica import Replica
from qpdsl.cluster.replica.replica_setup import ReplicaSetup


class ReplicaActor:
    """`tell` takes a pickled command, `said` gives a pickled list of messages, at least one."""

    def __init__(self, name: str, setup: bytes) -> None:
        self._name = name
        self._setup: ReplicaSetup = pickle.loads(setup)
        if self._setup.threads is not None:
            # Ray sets it by what it reserves, which says nothing of what is there. Torch has not been loaded yet.
            os.environ.pop("OMP_NUM_THREADS", None)
        self._outbox: asyncio.Queue[Message] = asyncio.Queue()
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
