"""The process of a local replica: two threads between its socket and its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import queue
import signal
import threading
from multiprocessing.connection import Connection

from qpdsl.cluster.replica.messages import ReplicaMessage
from qpdsl.cluster.replica.replica import Replica
from qpdsl.executor.requests import engine_loop


def main(handle: int, name: str) -> None:
    """Runs the replica at the other end of a socket until it is told to stop, or whoever told it is gone."""
    # The driver gets these too, as with systemd, and says what is to be done.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(handle)
    outbox: queue.SimpleQueue[ReplicaMessage | None] = queue.SimpleQueue()
    writer = threading.Thread(target=_write, args=(connection, outbox), daemon=True)
    writer.start()
    engine_loop.run(_run(connection, name, outbox))
    outbox.put(None)
    writer.join()


async def _run(connection: Connection, name: str, outbox: queue.SimpleQueue[ReplicaMessage | None]) -> None:
    loop = asyncio.get_running_loop()
    replica = Replica(name, pickle.loads(connection.recv_bytes()), outbox.put)

    def read() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                loop.call_soon_threadsafe(replica.tell, pickle.loads(connection.recv_bytes()))
        # Nobody would hear what comes of the rows, however far they are.
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    await replica.run()


def _write(connection: Connection, outbox: queue.SimpleQueue[ReplicaMessage | None]) -> None:
    with contextlib.suppress(OSError):
        while (message := outbox.get()) is not None:
            connection.send_bytes(pickle.dumps(message))
