"""Where a dashboard's events come from: a run's socket, or a recorded run, which is played
at any speed, paused, step by step, forwards and backwards.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from qpdsl.executor.events.events import Event
from qpdsl.executor.events.trace import LineReader, TraceError, TraceFindings, read_trace
from qpdsl.tui.state.run_state import RunState

SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 1000.0)
# Seconds that the player may work before keys are read again, and events between two looks at the clock.
_SLICE = 0.02
_BATCH = 64
_LOADED_AT_ONCE = 2000
_LINE_LIMIT = 64 << 20
_RETRY = 0.05
_TAKEN_AT_ONCE = 500
# Seconds without an event after which a socket has told what there was, and seconds for all of it.
_QUIET = 0.3
_LONGEST_LOOK = 3.0


class Player:
    """Plays the events of a file, which it reads in a thread of its own.

    `position` is the time on the run's clock, `state` the sum of the events up to that time. A jump back builds a new
    state beside the old one, in slices of time, and then replaces the old one.
    """

    def __init__(self, path: Path, *, speed: float = 1.0, paused: bool = False, end: bool = False) -> None:
        self.path = path
        self.speed = speed
        self.paused = paused or end
        self.position = 0.0
        self.state = RunState()
        self.loaded = False
        self.error: str | None = None
        self._wants_end = end
        self._reader = LineReader()
        self._events: list[Event] = []
        self._times: list[float] = []
        self._done = 0
        self._target = 0
        self._rebuilt: RunState | None = None
        self._stopped = False
        threading.Thread(target=self._load, name="qpdsl replay", daemon=True).start()

    @property
    def findings(self) -> TraceFindings:
        return self._reader.findings

    @property
    def duration(self) -> float:
        return self._times[-1] if self._times else 0.0

    @property
    def ended(self) -> bool:
        return self.loaded and self._target >= len(self._events)

    @property
    def busy(self) -> bool:
        """Whether the state has not reached the position yet."""
        return self._done < self._target or self._rebuilt is not None

    @property
    def event_number(self) -> tuple[int, int]:
        """The number of the event at the position, and the number of all events."""
        return self._target, len(self._events)

    def tick(self, seconds: float) -> None:
        """Moves on by so many seconds of the screen's time, unless paused."""
        if self._wants_end and self.loaded:
            self._wants_end = False
            self.seek(self.duration)
        if not self.paused and not self.busy:
            self._aim(min(self.position + seconds * self.speed, self.duration))
            if self.ended:
                self.paused = True
        self._work()

    def seek(self, position: float) -> None:
        """Jumps to a time."""
        self._aim(min(max(position, 0.0), self.duration))

    def step(self, by: int) -> None:
        """Moves by some events, on or back, and pauses."""
        self.paused = True
        self._aim_at(min(max(self._target + by, 0), len(self._events)))
        self.position = self._times[self._target - 1] if self._target else 0.0

    def toggle(self) -> None:
        """Pauses or continues; at the end it starts from the beginning."""
        if self.paused and self.ended and not self._wants_end:
            self.seek(0.0)
        self.paused = not self.paused

    def faster(self, by: int) -> None:
        """The next speed up or down."""
        at = bisect_right(SPEEDS, self.speed) - 1
        if by < 0 and SPEEDS[max(at, 0)] < self.speed:
            by += 1
        self.speed = SPEEDS[min(max(at + by, 0), len(SPEEDS) - 1)]

    def close(self) -> None:
        self._stopped = True

    def _aim(self, position: float) -> None:
        self.position = position
        self._aim_at(bisect_right(self._times, position, hi=len(self._events)))

    def _aim_at(self, target: int) -> None:
        if target < self._done:
            self._rebuilt = RunState()
            self._done = 0
        self._target = target

    def _work(self) -> None:
        """Takes events up to the target, for one slice of time."""
        until = time.perf_counter() + _SLICE
        state = self._rebuilt if self._rebuilt is not None else self.state
        while self._done < self._target:
            end = min(self._done + _BATCH, self._target)
            for event in self._events[self._done : end]:
                state.add(event)
            self._done = end
            if time.perf_counter() > until:
                return
        if self._rebuilt is not None:
            self.state, self._rebuilt = self._rebuilt, None

    def _load(self) -> None:
        try:
            for number, event in enumerate(self._monotonic()):
                self._times.append(event.at)
                self._events.append(event)
                if self._stopped:
                    return
                if number % _LOADED_AT_ONCE == 0:
                    # Events that are loaded stay. A collector that walks them again and again would delay the keys.
                    gc.freeze()
                    # The screen's thread gets its turn.
                    time.sleep(0.001)
        except (OSError, TraceError) as error:
            self.error = str(error)
        except Exception as error:
            # This thread's faults would otherwise be printed over the screen.
            self.error = f"the trace could not be read on: {type(error).__name__}: {error}"
        gc.freeze()
        self.loaded = True

    def _monotonic(self) -> Iterator[Event]:
        """The events with times that never decrease: some events are emitted a moment after they happened."""
        latest = 0.0
        for event in read_trace(self.path, self._reader):
            if event.at < latest:
                event = replace(event, at=latest)
            latest = event.at
            yield event


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
        self._opened = self._seen = time.monotonic()

    @property
    def phase(self) -> str:
        phase = self.state.phase
        return "gone" if self.gone and phase not in ("done", "failed", "interrupted") else phase

    @property
    def elapsed(self) -> float:
        if not self.state.changes:
            return time.monotonic() - self._opened
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
        """What counts as now moves on while nothing happens."""
        if self.state.changes:
            self.state.now, self._seen = self.elapsed, time.monotonic()

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


def standing(path: Path) -> RunState:
    """How a process stands now: what its socket tells of it at once. Raises OSError and TraceError."""
    state, reader, rest = RunState(), LineReader(), b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(path))
        end = time.monotonic() + _LONGEST_LOOK
        while time.monotonic() < end:
            connection.settimeout(_QUIET if state.changes else _LONGEST_LOOK)
            try:
                data = connection.recv(1 << 20)
            except TimeoutError:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                event = reader.read(line.decode("utf-8", errors="replace"))
                if event is not None:
                    state.add(event)
            if not data:
                break
    return state


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
