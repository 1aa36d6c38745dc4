"""The dashboard's pictures in docs/pictures, drawn from runs that this script makes, and one that moves: a search from
its first candidate to what came of it.

python -m benchmarks.dashboard_pictures [--rows N]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.strip import Strip

from benchmarks.common.animated_svg import Frame, animated_svg
from benchmarks.common.folders import PICTURES
from qpdsl.cli import main as qpdsl
from qpdsl.executor.events.events import Expanded, InstanceDone, Selected, Valued
from qpdsl.executor.events.trace import LineReader, read_trace
from qpdsl.tui.app import Dashboard
from qpdsl.tui.screens.search import SearchView
from qpdsl.tui.state.event_source import Player, ReplaySource
from qpdsl.tui.widgets.bars import SCREENS
from qpdsl.tui.widgets.palette import THEMES

SIZE = (112, 30)
# How far into the run, and which row the search is shown of: verifier and generator disagree there.
PART, ROW = 0.9, "count-004"
# The row whose search is followed.
FOLLOWED = "count-005"


# The moving picture: its size, how many frames of the search, the seconds of each and of the others.
FILM, SEARCHED, SHORT, LONG = (100, 27), 24, 0.5, 4.0


def record(program: str, rows: int, folder: Path) -> Path:
    """A trace of a program over the first problems that ship."""
    problems = (files("qpdsl.programs") / "data" / "counting-500.jsonl").read_text("utf-8").splitlines()
    rows_file, trace = folder / "problems.jsonl", folder / f"{program}.jsonl"
    rows_file.write_text("\n".join(problems[:rows]) + "\n", encoding="utf-8")
    paths = ["--input", str(rows_file), "--output", str(folder / f"{program}.out.jsonl"), "--trace", str(trace)]
    if qpdsl(["run", program, *paths, "--concurrency", "8"]) != 0:
        raise SystemExit("the run failed")
    return trace


def _played(trace: Path) -> Player:
    player = Player(trace, paused=True)
    player.finish_loading()
    return player


async def _shown(pilot: Pilot[Any], player: Player, position: float | None = None) -> None:
    """Draws the run as it was at a time."""
    if position is not None:
        player.seek(position)
    while player.busy:
        player.tick(0.0)
    app = pilot.app
    assert isinstance(app, Dashboard)
    await pilot.pause()
    app.draw(force=True)
    await pilot.pause()


async def draw(trace: Path) -> None:
    player = _played(trace)
    app = Dashboard(ReplaySource(player), clocked=False)
    app.theme = THEMES[0].name
    async with app.run_test(size=SIZE) as pilot:
        await _shown(pilot, player, PART * player.duration)
        for number, screen in enumerate(SCREENS, 1):
            if screen == "compare":
                # It takes another run.
                continue
            await pilot.press(str(number))
            if screen == "plan":
                await pilot.press("end", "up")
            if screen == "search":
                app.query_one(SearchView).open_row(ROW)
            await _shown(pilot, player)
            picture = app.export_screenshot(title=f"qpdsl · {screen}")
            (PICTURES / f"dashboard-{screen}.svg").write_text(picture, encoding="utf-8")
        await pilot.press("v")
        await _shown(pilot, player)
        picture = app.export_screenshot(title="qpdsl · verifier")
        (PICTURES / "dashboard-verifier.svg").write_text(picture, encoding="utf-8")


async def film(trace: Path) -> None:
    """One row's search as it went, then what went wrong in another, the verifier, and where the time went."""
    player = _played(trace)
    events = [event for event in read_trace(trace, LineReader()) if getattr(event, "instance", None) == FOLLOWED]
    # When something happened that is seen; of many times some.
    times = sorted({event.at for event in events if isinstance(event, (Expanded, Valued, Selected, InstanceDone))})
    times = [times[at * len(times) // SEARCHED] for at in range(SEARCHED)] if len(times) > SEARCHED else times
    app = Dashboard(ReplaySource(player), clocked=False)
    app.theme = THEMES[0].name
    frames = []

    def take(seconds: float) -> None:
        frames.append(Frame([Strip(strip) for strip in app.screen._compositor.render_strips()], seconds))

    async with app.run_test(size=FILM) as pilot:
        await pilot.press(str(SCREENS.index("search") + 1))
        app.query_one(SearchView).open_row(FOLLOWED)
        for time in times:
            await _shown(pilot, player, time)
            take(SHORT)
        await _shown(pilot, player, player.duration)
        take(LONG)
        for key in ("w", "v", str(SCREENS.index("engine") + 1)):
            await pilot.press(key)
            await _shown(pilot, player)
            take(LONG)
    theme = THEMES[0]
    assert theme.foreground is not None and theme.background is not None
    drawn = animated_svg(frames, "a search in qpdsl's dashboard", theme.foreground, theme.background)
    (PICTURES / "dashboard.svg").write_text(drawn, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=24)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = record("beam_search", arguments.rows, Path(folder))
        asyncio.run(draw(trace))
        asyncio.run(film(trace))


if __name__ == "__main__":
    main()
