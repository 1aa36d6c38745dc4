"""The access log: one line for each request, in the form `name=value` (logfmt).

Lines are written by a thread, so that a full disk or a pipe that nobody reads holds up no request; then lines are lost,
and the next one says how many.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from qpdsl.serve.served_model import TokenUsage

_MAX_WAITING = 10_000
_SECONDS_TO_END = 1.0
_PLAIN = re.compile(r"[\w./:@+-]+", re.ASCII)
_LONGEST = 200
_BEGINNING = b"time="


@dataclass(slots=True)
class RequestRecord:
    """What is told of a request when it is over. `key` is the name of the client's key, never the key itself.

    `arrived` is on the clock of `time.monotonic`; a `status` of 0 says that the client had gone before its answer.
    `failure` is the status that a stream would have had which ended in an error.
    """

    method: str
    path: str
    arrived: float = field(default_factory=time.monotonic)
    key: str = ""
    model: str = ""
    status: int = 0
    failure: int | None = None
    usage: TokenUsage | None = None

    def line(self) -> str:
        """The record, ended now."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        parts: dict[str, object] = {"time": now, "key": self.key, "method": self.method, "path": self.path}
        parts |= {"model": self.model, "status": self.status or "gone"}
        if self.failure is not None:
            parts["error"] = self.failure
        if self.usage is not None:
            parts["prompt_tokens"] = self.usage.prompt_tokens
            parts["cached_tokens"] = self.usage.cached_tokens
            parts["completion_tokens"] = self.usage.completion_tokens
        parts["seconds"] = f"{time.monotonic() - self.arrived:.3f}"
        return " ".join(f"{name}={_shown(str(value))}" for name, value in parts.items() if value != "")


class AccessLog:
    """Writes records to an open file, by its descriptor, which becomes the log's own, until it is closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._write, name="qpdsl access log", daemon=True)
        self._thread.start()

    @classmethod
    def at(cls, file: Path | None) -> AccessLog:
        """A log that is appended to a file, which its owner alone can read; None for stderr. Raises OSError."""
        if file is None:
            return cls(os.dup(2))
        return cls(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def write(self, record: RequestRecord) -> None:
        try:
            self._lines.put_nowait(record.line() + (f" lost_lines={self._lost}" if self._lost else ""))
            self._lost = 0
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Waits a moment until all is written."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(_SECONDS_TO_END)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            left = f"{line}\n".encode()
            with contextlib.suppress(OSError):
                while left:
                    left = left[os.write(self._descriptor, left) :]
        os.close(self._descriptor)


def begins_access_log(file: BinaryIO) -> bool:
    """Whether an open file holds an access log, as far as its beginning shows."""
    return file.read(len(_BEGINNING)) in (_BEGINNING, b"")


def _shown(value: str) -> str:
    """A value as it stands in a line: quoted, and in ASCII, unless it is plain."""
    value = value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"
    return value if _PLAIN.fullmatch(value) else json.dumps(value)
