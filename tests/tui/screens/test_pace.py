"""How often the dashboard draws by itself: less where the terminal has had enough, or is slow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from types import SimpleNamespace

import pytest

from qpdsl.tui.app import Dashboard
from tests.support.tui.screen import dashboard
from tests.support.tui.traces import BEAM


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
