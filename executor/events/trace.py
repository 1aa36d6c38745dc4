"""Trace files: the events of a run as JSON lines, written while it runs, readable wherever they were cut off.

A feed takes events to a file or a socket and does not make the run wait: a bounded queue and a thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from qpdsl.executor.events.codec import FORMAT, BadEvent, UnknownKind, decode, encode, header, read_header
from qpdsl.executor.events.events import Event, Lost
from qpdsl.executor.events.stream import EventStream

# Seconds between two writes, and between two frames of a dashboard: the more events at once, the less each takes.
_INTERVAL = 0.25
# Bytes of a line; a longer one is no event.
_LONGEST = 64 << 20


class Feed:
    """Writes every event of a stream as a line, from a thread of its own, four times a second.

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
        self._unsubscribe = stream.subscribe(self._take, details=True, history=history, patient=True)
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
        self._stream.deliver()
        with self._lock:
            events, self._waiting = self._waiting, []
            lost, self._lost = self._lost, 0
        if lost:
            events.append(Lost(count=lost))
        if events:
            lines = [encode(event, self._stream.zero) for event in events]
            self._write(("\n".join(lines) + "\n").encode(errors="replace"))


class TraceError(Exception):
    """A file that is no trace."""


class TraceWriter:
    """Writes a stream's events to an unbuffered file, which it closes: a batch of lines is one write."""

    def __init__(self, stream: EventStream, file: BinaryIO) -> None:
        self._file = file
        self._feed = Feed(stream, self._write, history=True)

    @property
    def error(self) -> OSError | None:
        """Why the trace is not whole."""
        return self._feed.error

    def close(self) -> None:
        self._feed.close()
        self._file.close()

    def _write(self, data: bytes) -> None:
        # A disk that is nearly full takes a part and says how much.
        while data:
            data = data[self._file.write(data) :]


@dataclass(slots=True)
class TraceFindings:
    """What was skipped or odd in the lines of a trace.

    unknown: events by kinds that this version does not know
    broken:  lines that are no event
    torn:    the last line is cut off
    newer:   the trace has a newer format
    """

    unknown: Counter[str] = field(default_factory=Counter)
    broken: int = 0
    torn: bool = False
    newer: bool = False

    def notes(self) -> list[str]:
        """The findings in words, a line each."""
        notes = ["the trace is of a newer version of qpdsl; what is not known here is left out"] if self.newer else []
        notes += [f"{_times(count)} of the unknown kind `{kind}` skipped" for kind, count in self.unknown.items()]
        notes += [f"{self.broken:,} broken line{'s' * (self.broken != 1)} skipped"] if self.broken else []
        notes += ["the last line is cut off: the run was still going, or was killed"] if self.torn else []
        return notes


class LineReader:
    """Turns the lines of a trace into events, one after another.

    `findings` collects what is skipped; `begun` says that the header has been read.
    """

    def __init__(self) -> None:
        self.findings = TraceFindings()
        self.begun = False

    def read(self, line: str) -> Event | None:
        """The event of a line; None for the header and for what is skipped. Raises TraceError on a wrong header."""
        if not self.begun:
            try:
                self.findings.newer = read_header(line) > FORMAT
            except BadEvent as error:
                raise TraceError(str(error)) from None
            self.begun = True
            return None
        try:
            return decode(line)
        except BadEvent as error:
            if isinstance(error, UnknownKind):
                self.findings.unknown[error.kind] += 1
            else:
                self.findings.broken += 1
            return None


def begins_trace(file: BinaryIO) -> bool:
    """Whether an open file is a trace, as far as its first line tells."""
    try:
        read_header(file.readline(_LONGEST).decode("utf-8", errors="replace"))
    except BadEvent:
        return False
    return True


def read_trace(path: Path, reader: LineReader) -> Iterator[Event]:
    """The events of a file. Raises TraceError, and OSError where it cannot be read."""
    with path.open("rb") as file:
        whole = True
        while data := file.readline(_LONGEST):
            begins, whole = whole, data.endswith(b"\n")
            if not begins:
                continue
            if not whole:
                reader.findings.broken += len(data) == _LONGEST
                continue
            event = reader.read(data.decode("utf-8", errors="replace"))
            if event is not None:
                yield event
    if not whole:
        reader.findings.torn = True
        return
    if not reader.begun:
        raise TraceError("this is no trace of qpdsl: the file is empty")


def _times(count: int) -> str:
    return f"{count:,} event{'s' * (count != 1)}"
