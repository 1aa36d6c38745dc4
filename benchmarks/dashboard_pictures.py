"""The dashboard's pictures in docs/pictures, drawn from a run that this script makes.

python -m benchmarks.dashboard_pictures [--rows N]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from importlib.resources import files
from pathlib import Path

from benchmarks.common.folders import PICTURES
from qpdsl.cli import main as qpdsl
from qpdsl.tui.app import Dashboard
from qpdsl.tui.screens.search import SearchView
from qpdsl.tui.state.event_source import Player, ReplaySource
from qpdsl.tui.widgets.bars import SCREENS
from qpdsl.tui.widgets.palette import THEMES

SIZE = (112, 30)
# How far into the run, and which row the search is shown of: verifier and generator disagree there.
PART, ROW = 0.9, "count-004"


def record(rows: int, folder: Path) -> Path:
    """A trace of beam search over the first problems that ship."""
    problems = (files("qpdsl.programs") / "data" / "counting-500.jsonl").read_text("utf-8").splitlines()
    rows_file, trace = folder / "problems.jsonl", folder / "trace.jsonl"
    rows_file.write_text("\n".join(problems[:rows]) + "\n", encoding="utf-8")
    paths = ["--input", str(rows_file), "--output", str(folder / "out.jsonl"), "--trace", str(trace)]
    if qpdsl(["run", "beam_search", *paths, "--concurrency", "8"]) != 0:
        raise SystemExit("the run failed")
    return trace


async def draw(trace: Path) -> None:
    player = Player(trace, paused=True)
    while not player.loaded:
        await asyncio.sleep(0.01)
    player.seek(PART * player.duration)
    while player.busy:
        player.tick(0.0)
    app = Dashboard(ReplaySource(player), clocked=False)
    app.theme = THEMES[0].name
    async with app.run_test(size=SIZE) as pilot:
        for number, screen in enumerate(SCREENS, 1):
            await pilot.press(str(number))
            if screen == "plan":
                await pilot.press("end", "up")
            if screen == "search":
                app.query_one(SearchView).open_row(ROW)
            await pilot.pause()
            app.draw(force=True)
            await pilot.pause()
            picture = app.export_screenshot(title=f"qpdsl · {screen}")
            (PICTURES / f"dashboard-{screen}.svg").write_text(picture, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=24)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(draw(record(arguments.rows, Path(folder))))


if __name__ == "__main__":
    main()
