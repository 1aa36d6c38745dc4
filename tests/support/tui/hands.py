"""Somebody who does anything at all to a dashboard: random keys, clicks and sizes, often faster than it draws."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path

from textual import events
from textual._wait import wait_for_idle
from textual.app import App
from textual.geometry import Size
from textual.keys import _character_to_key
from textual.pilot import Pilot

from qpdsl.tui.app import Dashboard
from qpdsl.tui.state.event_source import Player, ReplaySource
from qpdsl.tui.widgets.questions import Leave
from tests.support.tui.screen import loaded

SIZES = ((80, 24), (120, 40), (200, 60), (100, 30), (40, 12), (110, 24), (20, 6), (300, 80), (10, 3))
KEYS = (
    *"12345", *"12345", *"tnpqfxvsrdjkgGhbcuylSozZ", *"?/.,+-()[] <>", "tab", "shift+tab", "up", "down", "left",
    "right", "home", "end", "pageup", "pagedown", "enter", "enter", "escape", "escape", "escape", "ctrl+p", "ctrl+p",
    "backspace", "ctrl+a", "ctrl+c", "delete", "f1", "ctrl+q",
)  # fmt: skip
# Of a hundred things that somebody does.
_CLICKS, _SIZES, _PATIENT = 20, 3, 35
_TOLD = 40


async def handle(trace: Path, seed: int, acts: int, told: Callable[[int], object] = lambda number: None) -> list[str]:
    """Does that many things to a dashboard on a recorded run. Returns what it noted of keys that failed.

    Raises AssertionError where the dashboard would have closed, with what was done last. `told` is called with the
    number of things done, now and then.
    """
    chance = random.Random(seed)
    player = loaded(Player(trace, speed=25.0))
    app = Dashboard(ReplaySource(player), asks=lambda: chance.random() < 0.5, clocked=False)

    def stay(*leave: object) -> None:
        while len(app.screen_stack) > 1:
            app.pop_screen()

    app.exit = stay  # type: ignore[method-assign]
    done: deque[str] = deque(maxlen=_TOLD)
    async with app.run_test(size=SIZES[0]) as pilot:
        for number in range(acts):
            done.append(await _act(pilot, chance))
            if number % 500 == 0:
                told(number)
            if number % 5 == 0:
                player.tick(0.03)
                app.draw_paced()
                # Timers come due.
                await asyncio.sleep(0.002)
            assert app._exception is None, f"{app._exception!r} after {number} of seed {seed}: {', '.join(done)}"
            names = [type(screen).__name__ for screen in app.screen_stack]
            assert names.count("CommandPalette") <= 2, f"{names} of seed {seed}: {', '.join(done)}"
        await wait_for_idle(0)
    player.close()
    return app.faults


def click(app: App[object], x: int, y: int) -> None:
    """Moves the mouse there and clicks. Unlike `Pilot.click` it waits for no widget, as one may have ended."""
    for sort in (events.MouseMove, events.MouseDown, events.MouseUp):
        app.post_message(sort(None, x, y, 0, 0, 1, False, False, False, x, y))


async def _act(pilot: Pilot[Leave | None], chance: random.Random) -> str:
    """One thing that a terminal can send; what it was."""
    app, size = pilot.app, pilot.app.size
    kind = chance.randrange(100)
    if kind < _CLICKS:
        x, y = chance.randrange(max(size.width, 1)), chance.randrange(max(size.height, 1))
        for _ in range(chance.choice((1, 1, 2))):
            click(app, x, y)
        return f"click {x},{y}"
    if kind < _CLICKS + _SIZES:
        new = Size(*chance.choice(SIZES))
        assert app._driver is not None
        app._driver._size = (new.width, new.height)
        app.post_message(events.Resize(new, new))
        return f"size {new.width}x{new.height}"
    key = chance.choice(KEYS)
    one = len(key) == 1
    app.post_message(events.Key(_character_to_key(key) if one else key, key if one else None))
    # Some keys come while those before them are still on their way.
    for _ in range(12 if kind < _CLICKS + _SIZES + _PATIENT else kind % 2):
        await asyncio.sleep(0)
    return key
