"""A dashboard without a terminal, its screen as text."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot

from qpdsl.tui.app import Dashboard
from qpdsl.tui.state.event_source import EventSource, Player, ReplaySource
from qpdsl.tui.widgets.questions import Leave

SMALL, LARGE = (80, 24), (200, 60)


def text(app: Dashboard) -> str:
    """What the screen shows, a line a line."""
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


async def settle(pilot: Pilot[Leave | None]) -> str:
    """Everything that is on its way has happened; the screen's text."""
    app = pilot.app
    assert isinstance(app, Dashboard)
    app.tick()
    player = app.source.player
    while player is not None and player.busy:
        player.tick(0)
    await pilot.pause()
    app.draw(force=True)
    await pilot.pause()
    while any(worker.name == "saved runs" and worker.is_running for worker in app.workers):
        await pilot.pause(0.001)
        await pilot.pause()
    return text(app)


async def press(pilot: Pilot[Leave | None], *keys: str) -> str:
    await pilot.press(*keys)
    return await settle(pilot)


def loaded(player: Player) -> Player:
    """A player that has read its file."""
    while not player.loaded:
        time.sleep(0.001)
    return player


@asynccontextmanager
async def dashboard(
    source: EventSource | Path,
    size: tuple[int, int] = SMALL,
    part: float = 1.0,
    **options: object,
) -> AsyncIterator[Pilot[Leave | None]]:
    """A dashboard on a source, or on a recorded run at a part of its time, paused."""
    if isinstance(source, Path):
        player = loaded(Player(source, paused=True))
        player.seek(part * player.duration)
        source = ReplaySource(player)
    app = Dashboard(source, clocked=False, **options)  # type: ignore[arg-type]
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        yield pilot
