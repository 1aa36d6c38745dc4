"""What lies over a screen, such as the palette: keys go to it alone, and none ends the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from textual._wait import wait_for_idle
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import OptionList

from qpdsl.tui.app import Dashboard
from qpdsl.tui.widgets.details import Details
from tests.support.tui.hands import click
from tests.support.tui.screen import dashboard, press, settle
from tests.support.tui.traces import BEAM


def app_of(pilot: Pilot) -> Dashboard:
    assert isinstance(pilot.app, Dashboard)
    return pilot.app


def test_an_action_of_a_covered_screen_is_refused() -> None:
    async def main() -> None:
        async with dashboard(BEAM) as pilot:
            await pilot.press("ctrl+p")
            await pilot.pause()
            view = app_of(pilot).view
            for action, owner in (("notes", None), ("keys", pilot.app), ("command_palette", None), ("filter", view)):
                assert not await pilot.app.run_action(action, owner)
            assert len(pilot.app.screen_stack) == 2
            await pilot.press("escape")
            await pilot.pause()
            assert await pilot.app.run_action("notes") and isinstance(pilot.app.screen, Details)

    asyncio.run(main())


def test_a_command_of_the_palette_is_carried_out() -> None:
    async def main() -> None:
        async with dashboard(BEAM) as pilot:
            await pilot.press("ctrl+p")
            await pilot.pause()
            await pilot.press(*"engine")
            await pilot.pause(0.5)
            await pilot.press("enter")
            await pilot.pause()
            await pilot.press("enter")
            assert "KV pages" in await settle(pilot)

    asyncio.run(main())


def test_a_key_that_fails_closes_what_is_open_and_is_told_in_the_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise KeyError("0")

    monkeypatch.setattr(CommandPalette, "_action_command_list", fail)

    async def main() -> None:
        async with dashboard(BEAM) as pilot:
            await pilot.press("ctrl+p")
            await pilot.pause()
            assert isinstance(pilot.app.screen, CommandPalette)
            shown = await press(pilot, "pagedown")
            assert len(pilot.app.screen_stack) == 1 and "operator" in shown
            notes = await press(pilot, "n")
            assert "a key could not be obeyed" in notes and "KeyError" in notes

    asyncio.run(main())


def test_what_fails_inside_the_palette_closes_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(OptionList, "_on_click", fail)

    async def main() -> None:
        async with dashboard(BEAM) as pilot:
            for _ in range(2):
                await pilot.press("ctrl+p")
                await pilot.pause(0.3)
                click(pilot.app, *pilot.app.screen.query_one(OptionList).region.offset)
                await wait_for_idle(0)
                assert len(pilot.app.screen_stack) == 1
            assert "IndexError" in await press(pilot, "n")
            await press(pilot, "escape")
            assert "KV pages" in await press(pilot, "4")

    asyncio.run(main())


def fail() -> None:
    raise LookupError("told")


async def fail_later() -> None:
    fail()


@pytest.mark.parametrize(
    "failing",
    [
        lambda widget: widget.call_later(fail),
        lambda widget: widget.call_after_refresh(fail),
        lambda widget: widget.set_timer(0.001, fail),
        lambda widget: widget.run_worker(fail_later()),
    ],
)
def test_textual_says_where_something_failed(failing: Callable[[Widget], object]) -> None:
    """It does so by private parts of it (`resilient_app.py`). Without the one what fails in the palette ends the
    dashboard; without the other any failure ends it with a traceback.
    """

    async def main() -> None:
        async with dashboard(BEAM) as pilot:
            await press(pilot, "n")
            failing(pilot.app.screen.query_one("#details"))
            # What failed takes no more messages, so that no pilot waits for it.
            await asyncio.sleep(0.05)
            await wait_for_idle(0)
            (fault,) = app_of(pilot).faults
            # What is to be done after a drawing is done by the screen.
            assert fault in ("VerticalScroll failed: LookupError: told", "Details failed: LookupError: told")
            assert len(pilot.app.screen_stack) == 1 and "LookupError: told" in await press(pilot, "n")

    asyncio.run(main())
