"""A feed of a run's events to a file or a socket that does not make the run wait: a bounded queue and a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from qpdsl.executor.events.codec import encode, header
from qpdsl.executor.events.events import Event, Lost
from qpdsl.executor.events.stream import EventStream

# Seconds between two writes.
_INTERVAL = 0.1


class Feed:
    """Writes every event of a stream as a line, from a thread of its own, ten times a second.

    At most `capacity` events wait. Those that come while so many wait are left out, and a `Lost` event counts them.
    `error` is what ended the feed early, such as a full disk or a client that has gone.
    """

    def __init__(
        self,
        stream: EventStream,
        write: Callable[[bytes], object],
        *,
        history: bool = False,
        capacity: int = 200_000,
    ) -> None:
        self.error: OSError | None = None
        self._stream = stream
        self._write = write
        self._capacity = capacity
        self._waiting: list[Event] = []
        self._lost = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._unsubscribe = stream.subscribe(self._take, details=True, history=history)
        self._thread = threading.Thread(target=self._run, name="qpdsl feed", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self, patience: float | None = None) -> None:
        """Writes the waiting events and ends; waits at most `patience` seconds for a slow reader."""
        self._unsubscribe()
        self._closing.set()
        self._thread.join(patience)

    def _take(self, event: Event) -> None:
        with self._lock:
            if len(self._waiting) < self._capacity:
                self._waiting.append(event)
            else:
                self._lost += 1

    def _run(self) -> None:
        try:
            self._write(f"{header()}\n".encode())
            ending = False
            while not ending:
                ending = self._closing.wait(_INTERVAL)
                self._drain()
        except OSError as error:
            self.error = error
            self._unsubscribe()
            self._waiting.clear()

    def _drain(self) -> None:
        with self._lock:
            events, self._waiting = self._waiting, []
            lost, self._lost = self._lost, 0
        if lost:
            events.append(Lost(count=lost))
        if events:
            lines = [encode(event, self._stream.zero) for event in events]
            self._write(("\n".join(lines) + "\n").encode(errors="replace"))
