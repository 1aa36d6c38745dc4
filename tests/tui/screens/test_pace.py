"""How often the dashboard draws by itself: less where the terminal has had enough, or is slow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from types import SimpleNamespace

import pytest

from qpdsl.executor.events.events import RowDone, RunStarted
from qpdsl.tui.app import Dashboard
from qpdsl.tui.state.compare import OtherName, OtherRow, OtherRun
from qpdsl.tui.state.event_source import Player, ReplaySource
from tests.support.tui.screen import LARGE, dashboard, loaded, settle, text
from tests.support.tui.traces import BEAM, recorded


def test_it_waits_until_the_terminal_has_taken_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bool] = []
    clock = [time.monotonic()]

    async def main() -> None:
        async with dashboard(BEAM) as pilot:
            app = pilot.app
            assert isinstance(app, Dashboard)
            monkeypatch.setattr("qpdsl.tui.app.time", SimpleNamespace(monotonic=lambda: clock[0]))
            monkeypatch.setattr(app, "draw", lambda: drawn.append(True))
            clock[0] += 60.0
            app.draw_paced()
            assert len(drawn) == 1
            # A whole screen in a frame: two seconds of what a slow line carries.
            app._cells.written = 40_000
            for _ in range(8):
                clock[0] += 0.25
                app.draw_paced()
            assert len(drawn) == 1
            clock[0] += 1.0
            app.draw_paced()
            assert len(drawn) == 2
            # Output waits for the terminal.
            end, terminal = os.pipe()
            os.set_blocking(terminal, False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(terminal, bytes(4096))
            monkeypatch.setattr("sys.__stderr__", os.fdopen(terminal, "w"))
            clock[0] += 10.0
            app.draw_paced()
            assert len(drawn) == 2
            os.read(end, 1 << 20)
            app.draw_paced()
            assert len(drawn) == 3
            monkeypatch.undo()

    asyncio.run(main())


class SlowRuns:
    """Saved runs on a disk that gives nothing before `disk` is set. `waited` has who gave up."""

    def __init__(self) -> None:
        self.disk = threading.Event()
        self.waited: list[str] = []

    def names(self) -> list[OtherName]:
        if not self.disk.wait(3.0):
            self.waited.append("names")
        return [
            OtherName("run-1", next(event.program for event in recorded() if isinstance(event, RunStarted)), 1, 1, 1)
        ]

    def read(self, name: str) -> OtherRun:
        row = next(event.row for event in recorded() if isinstance(event, RowDone))
        return OtherRun(name, {row: OtherRow(row, "", "", True, 1)}, ())


def test_a_slow_disk_keeps_no_key_waiting() -> None:
    runs = SlowRuns()

    async def main(*, leaves: bool) -> None:
        player = loaded(Player(BEAM, paused=True))
        player.seek(player.duration)
        app = Dashboard(ReplaySource(player), clocked=False, runs=runs)
        async with app.run_test(size=LARGE) as pilot:
            while player.busy:
                app.tick()
            app.draw(force=True)
            await pilot.press("4")
            app.draw(force=True)
            await pilot.pause()
            assert "KV pages" in text(app) and "last" not in text(app)
            if leaves:
                await pilot.press("q")
                return
            runs.disk.set()
            assert "last 100%" in await settle(pilot)

    asyncio.run(main(leaves=True))
    asyncio.run(main(leaves=False))
    assert runs.waited == []
