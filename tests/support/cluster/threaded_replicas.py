"""Real replicas, each in a thread of this process, which is there sooner than a process of its own."""

from __future__ import annotations

import asyncio
import pickle
import threading
from typing import Any

from qpdsl.cluster.backends.backend import ReplicaLost
from qpdsl.cluster.replica.messages import Command, ReplicaMessage, ReplicaSetup
from qpdsl.cluster.replica.replica import Replica
from qpdsl.executor.requests import engine_loop


class ThreadedBackend:
    """Starts them. All that goes to and fro is pickled, as between processes."""

    async def start(self, name: str, number: int, setup: ReplicaSetup) -> _ThreadLink:
        return _ThreadLink(name, setup)

    async def close(self) -> None:
        """Nothing is left once the links are closed."""


class _ThreadLink:
    def __init__(self, name: str, setup: ReplicaSetup) -> None:
        self._name, self._ours = name, asyncio.get_running_loop()
        self._theirs: asyncio.AbstractEventLoop | None = None
        self._messages: asyncio.Queue[ReplicaMessage | None] = asyncio.Queue()
        self._replica = Replica(name, pickle.loads(pickle.dumps(setup)), self._tell)
        self._thread = threading.Thread(target=engine_loop.run, args=(self._run(),), daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        assert self._theirs is not None
        if not self._theirs.is_closed():
            self._theirs.call_soon_threadsafe(self._replica.tell, _passed(command))

    async def receive(self) -> ReplicaMessage:
        message = await self._messages.get()
        if message is None:
            raise ReplicaLost(f"{self._name} has ended")
        return message

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.join, 5)

    async def _run(self) -> None:
        self._theirs = asyncio.get_running_loop()
        await self._replica.run()
        self._ours.call_soon_threadsafe(self._messages.put_nowait, None)

    def _tell(self, message: ReplicaMessage) -> None:
        self._ours.call_soon_threadsafe(self._messages.put_nowait, _passed(message))


def _passed(message: Any) -> Any:
    return pickle.loads(pickle.dumps(message))
