"""Where a dashboard's events come from: a run's socket, or a recorded run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from qpdsl.executor.events.trace import LineReader, TraceError
from qpdsl.tui.state.player import Player
from qpdsl.tui.state.run_state import RunState

_LINE_LIMIT = 64 << 20
_RETRY = 0.05
_TAKEN_AT_ONCE = 500


class EventSource(Protocol):
    """`state` may become another object; `elapsed` is the run's time; `notes` say what could not be read."""

    @property
    def state(self) -> RunState: ...
    @property
    def phase(self) -> str: ...
    @property
    def elapsed(self) -> float: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def player(self) -> Player | None: ...
    async def follow(self) -> None:
        """Takes events for as long as there are any."""

    def tick(self, seconds: float) -> None:
        """Tells the source that so many seconds have passed on the screen."""


class SocketSource:
    """A run that is going on. `expected` says whether a socket that is not there yet may still come."""

    def __init__(self, path: Path, expected: Callable[[], bool] = lambda: False) -> None:
        self.state = RunState()
        self.player = None
        self.gone = False
        self._path = path
        self._expected = expected
        self._reader = LineReader()
        self._error: str | None = None
        self._seen = time.monotonic()

    @property
    def phase(self) -> str:
        phase = self.state.phase
        return "gone" if self.gone and phase not in ("done", "failed", "interrupted") else phase

    @property
    def elapsed(self) -> float:
        if self.state.begun is None:
            return 0.0
        going = 0.0 if self.gone or self.state.ended else time.monotonic() - self._seen
        return self.state.now + going

    @property
    def notes(self) -> list[str]:
        return [*self._reader.findings.notes(), *([self._error] if self._error else [])]

    async def follow(self) -> None:
        try:
            connected = await self._connected()
            if connected is not None:
                # The writer is kept: without it the connection is closed.
                reader, writer = connected
                await self._read(reader)
                writer.close()
        except (OSError, TraceError) as error:
            self._error = str(error)
        self.gone = True

    def tick(self, seconds: float) -> None:
        """A live run keeps its own time."""

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        while True:
            try:
                return await asyncio.open_unix_connection(str(self._path), limit=_LINE_LIMIT)
            except (FileNotFoundError, ConnectionRefusedError):
                if not self._expected():
                    return None
                await asyncio.sleep(_RETRY)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        taken = 0
        while True:
            try:
                data = await reader.readline()
            except ValueError:
                raise TraceError(f"an event is longer than {_LINE_LIMIT >> 20} MiB") from None
            if not data.endswith(b"\n"):
                return
            event = self._reader.read(data.decode("utf-8", errors="replace"))
            if event is not None:
                self.state.add(event)
                self._seen = time.monotonic()
            taken += 1
            if taken % _TAKEN_AT_ONCE == 0:
                # A long history must not keep the keys waiting.
                await asyncio.sleep(0)


class ReplaySource:
    """A recorded run."""

    def __init__(self, player: Player) -> None:
        self.player = player

    @property
    def state(self) -> RunState:
        return self.player.state

    @property
    def phase(self) -> str:
        return self.state.phase

    @property
    def elapsed(self) -> float:
        return self.player.position

    @property
    def notes(self) -> list[str]:
        return [*self.player.findings.notes(), *([self.player.error] if self.player.error else [])]

    async def follow(self) -> None:
        """The player reads for itself."""

    def tick(self, seconds: float) -> None:
        self.player.tick(seconds)
