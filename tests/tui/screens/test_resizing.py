"""Sizes that follow one another: every screen has the layout of the size that it has now."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from itertools import pairwise

import pytest
from textual.pilot import Pilot

from qpdsl.executor.events.events import EngineFigures, EngineStepped, Event
from qpdsl.tui.screens import compare, plan, rows, search
from qpdsl.tui.screens.view import View
from qpdsl.tui.widgets.bars import SCREENS
from qpdsl.tui.widgets.table import TableColumn, fitted
from tests.support.tui.screen import SMALL, dashboard, press, settle, text
from tests.support.tui.traces import BEAM, recorded, write

WIDE, NARROW = (160, 40), (80, 24)


async def resize(pilot: Pilot, size: tuple[int, int]) -> str:
    """As a terminal does it: the application hears of the size, and nothing else has it draw."""
    await pilot.resize_terminal(*size)
    await pilot.pause()
    return text(pilot.app)  # type: ignore[arg-type]


@pytest.mark.parametrize("screen", ["plan", "search"])
def test_the_layout_is_that_of_the_size_of_now(screen: str) -> None:
    async def main() -> None:
        async with dashboard(BEAM, NARROW, first=screen) as pilot:
            shown: dict[tuple[int, int], str] = {}
            for size in (WIDE, NARROW, WIDE, (100, 30), WIDE, NARROW):
                lines = await resize(pilot, size)
                assert shown.setdefault(size, lines) == lines
                wide = size[0] >= pilot.app.query_one(f"#{screen}", View).WIDE
                assert pilot.app.query_one(f"#{screen} .side").display == wide
            async with dashboard(BEAM, WIDE, first=screen) as other:
                assert text(other.app) == shown[WIDE]  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_screen_that_is_opened_first_is_drawn_in_the_room_it_has() -> None:
    """The ranking beside the tree has one line a candidate, and a graph says what time it is of."""

    async def main() -> None:
        async with dashboard(BEAM, (120, 40)) as pilot:
            await pilot.press("3")
            await pilot.pause()
            lines = text(pilot.app).splitlines()  # type: ignore[arg-type]
            ranked = [line for line in lines if " ◆  0." in line or " ★  0." in line]
            assert "cut" in text(pilot.app) and len(ranked) >= 4  # type: ignore[arg-type]
            await pilot.press("4")
            await pilot.pause()
            assert re.search(r"0:14\.2 +0:17\.3 +0:20\.5", text(pilot.app))  # type: ignore[arg-type]
            before = text(pilot.app)  # type: ignore[arg-type]
            assert await settle(pilot) == before

    asyncio.run(main())


def test_the_engine_scrolls_to_its_last_figure(tmp_path) -> None:
    others = {f"count_{number}": float(number) for number in range(40)}

    def full(event: Event) -> Event:
        if not isinstance(event, EngineStepped):
            return event
        assert isinstance(event.report, EngineFigures)
        report = EngineFigures(event.report.model, 1, 1, 0, 1, 10, 0, {**event.report.others, **others})
        return EngineStepped(at=event.at, report=report)

    trace = write(tmp_path / "full.jsonl", [full(event) for event in recorded()])

    async def main() -> None:
        async with dashboard(trace, (120, 40), first="engine") as pilot:
            assert "count 1" in await settle(pilot)
            assert "count 39" in await press(pilot, "end")

    asyncio.run(main())


def test_a_panel_says_how_much_it_leaves_out() -> None:
    async def main() -> None:
        async with dashboard(BEAM, SMALL) as pilot:
            for _ in SCREENS:
                await press(pilot, "tab")
            await pilot.resize_terminal(40, 20)
            assert "more lines, enter shows all" in await press(pilot, "3")

    asyncio.run(main())


@pytest.mark.parametrize("columns", [plan.COLUMNS, rows.COLUMNS, search.COLUMNS, compare.COLUMNS])
def test_columns_do_not_run_into_each_other(columns: Sequence[TableColumn]) -> None:
    """What ends at the right and what begins at the left of the next column are two cells apart, the others one."""
    for width in range(12, 220):
        placed = fitted(columns, width)
        assert placed[0].at == 0 and (len(placed) == 1 or placed[-1].at + placed[-1].width <= width)
        for before, after in pairwise(placed):
            apart = after.at - before.at - before.width
            assert apart >= (2 if before.column.right and not after.column.right else 1)
            assert before.width >= (before.column.width or before.column.least)
