"""Trace files: the events of a run as JSON lines, written while it runs, readable wherever they were cut off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from qpdsl.executor.events.codec import FORMAT, BadEvent, UnknownKind, decode, read_header
from qpdsl.executor.events.events import Event
from qpdsl.executor.events.feed import Feed
from qpdsl.executor.events.stream import EventStream


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
class Findings:
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
        self.findings = Findings()
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
        read_header(file.readline().decode("utf-8", errors="replace"))
    except BadEvent:
        return False
    return True


def read_trace(path: Path, reader: LineReader) -> Iterator[Event]:
    """The events of a file. Raises TraceError, and OSError where it cannot be read."""
    with path.open("rb") as file:
        for data in file:
            if not data.endswith(b"\n"):
                reader.findings.torn = True
                return
            event = reader.read(data.decode("utf-8", errors="replace"))
            if event is not None:
                yield event
    if not reader.begun:
        raise TraceError("this is no trace of qpdsl: the file is empty")


def _times(count: int) -> str:
    return f"{count:,} event{'s' * (count != 1)}"
