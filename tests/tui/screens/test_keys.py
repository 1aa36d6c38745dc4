"""Every key of every screen, on a recorded run."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

from qpdsl.tui.app import Dashboard
from qpdsl.tui.screens.candidate import FATES
from qpdsl.tui.screens.rows import RowsView
from qpdsl.tui.screens.search import COLUMNS, SearchView
from qpdsl.tui.widgets.glossary import WORDS
from tests.support.tui.held_source import HeldSource
from tests.support.tui.screen import LARGE, SMALL, dashboard, press, settle, text
from tests.support.tui.traces import BEAM

Test = Callable[[Pilot], Awaitable[None]]


def played(test: Test, size: tuple[int, int] = SMALL, part: float = 1.0) -> None:
    async def main() -> None:
        async with dashboard(BEAM, size, part) as pilot:
            await test(pilot)

    asyncio.run(main())


def app_of(pilot: Pilot) -> Dashboard:
    assert isinstance(pilot.app, Dashboard)
    return pilot.app


def said(pilot: Pilot) -> list[str]:
    """The notes that come over the screen from now on, which is without them in a test."""
    notes: list[str] = []
    pilot.app.notify = notes.append  # type: ignore[assignment]
    return notes


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_screens_by_number_and_by_tab(size: tuple[int, int]) -> None:
    async def test(pilot: Pilot) -> None:
        signs = {"1": "operator", "3": "candidate", "4": "KV pages", "2": "status"}
        signs["5"] = "beside no other run"
        for key in "23451":
            assert signs[key] in await press(pilot, key)
        for key in "23451":
            assert signs[key] in await press(pilot, "tab")
        assert signs["5"] in await press(pilot, "shift+tab")

    played(test, size)


def test_the_plan_moves_and_opens_details() -> None:
    async def test(pilot: Pilot) -> None:
        shown = await press(pilot, "home", "down", "j", "j", "j", "j")
        assert "score prm" in shown and "cached" in shown
        opened = await press(pilot, "d")
        assert "esc closes" in opened and "prompt tokens" in opened and "exact" in opened
        closed = await press(pilot, "escape")
        assert "esc closes" not in closed
        assert "status" in await press(pilot, "enter")
        assert "candidate" in await press(pilot, "enter")
        await press(pilot, "escape")
        assert app_of(pilot).picked == "rows"
        assert "operator" in await press(pilot, "escape")
        assert "return answer" in await press(pilot, "home")
        assert "chat user=problem" in await press(pilot, "end")
        await press(pilot, "k", "up", "pageup", "pagedown", "g", "G")

    played(test)


def test_the_search_shows_what_was_chosen_and_why() -> None:
    async def test(pilot: Pilot) -> None:
        shown = await press(pilot, "3")
        assert "★ the answer" in shown and "at `keep 4 by score`" in shown and "pruned" in shown
        assert "ended by eos" in shown and "log p" in shown
        before = shown
        assert "✕" in before
        hidden = await press(pilot, "x")
        assert "✕ 1" not in hidden and "★" in hidden
        await press(pilot, "x")
        ranking = await press(pilot, "o")
        assert "▸" in ranking
        await press(pilot, "o")
        opened = await press(pilot, "enter")
        assert "cut" in opened or "solution" in opened
        await press(pilot, "escape")
        folded = await press(pilot, "home", "space")
        assert "+4" in folded

    played(test)


def test_the_search_changes_rows_and_follows_again() -> None:
    async def test(pilot: Pilot) -> None:
        first = await press(pilot, "3")
        assert "following" in first
        other = await press(pilot, "left_square_bracket")
        assert "following" not in other and app_of(pilot).query_one(SearchView).row is not None
        back = await press(pilot, "right_square_bracket")
        assert app_of(pilot).query_one(SearchView).row == app_of(pilot).source.state.latest
        assert "following" in await press(pilot, "f")
        assert back

    played(test)


def test_rows_are_sorted_filtered_and_opened() -> None:
    async def test(pilot: Pilot) -> None:
        shown = await press(pilot, "2")
        assert "✖ failed" in shown and "the context has 24" in shown and "1 failed" in shown
        view = app_of(pilot).query_one(RowsView)
        first = (await press(pilot, "s")).splitlines()[3]
        assert view.sorted_by == "status" and "failed" in first
        last = (await press(pilot, "S")).splitlines()[3]
        assert "failed" not in last
        filtered = await press(pilot, "slash", *"status:failed", "enter")
        assert "too-long" in filtered and "count-009" not in filtered and "1 of 6 shown" in filtered
        details = await press(pilot, "d")
        assert "the context has 2404 tokens, zoo/counting takes 1023" in " ".join(details.replace("│", " ").split())
        await press(pilot, "escape")
        assert "count-009" in await press(pilot, "escape")
        await press(pilot, "slash", *"495", "enter")
        search = await press(pilot, "enter")
        assert "count-010" in search and "candidate" in search

    played(test)


def test_a_replay_pauses_steps_jumps_and_changes_speed() -> None:
    async def test(pilot: Pilot) -> None:
        player = app_of(pilot).source.player
        assert player is not None
        assert "paused" in await settle(pilot)
        await press(pilot, "left_parenthesis")
        assert player.position == 0.0 and player.event_number[0] <= 3
        await press(pilot, "full_stop")
        at = player.event_number[0]
        await press(pilot, "full_stop", "full_stop", "comma")
        assert player.event_number[0] == at + 1 and player.paused
        await press(pilot, "right_parenthesis")
        assert player.ended
        await press(pilot, "left")
        assert player.position == pytest.approx(player.duration * 0.95)
        await press(pilot, "right")
        assert player.ended
        await press(pilot, "plus")
        assert player.speed == 2.0
        await press(pilot, "minus", "minus")
        assert player.speed == 0.5
        await press(pilot, "left_parenthesis", "p")
        assert not player.paused and "playing" in await settle(pilot)
        before = player.position
        player.tick(0.2)
        assert player.position == pytest.approx(before + 0.1)
        await press(pilot, "space")
        assert player.paused

    played(test)


def test_going_back_shows_what_was_then() -> None:
    async def test(pilot: Pilot) -> None:
        state = app_of(pilot).source.state
        assert state.done == 6
        app_of(pilot).action_seek(0.75)
        shown = await settle(pilot)
        assert "running" in shown and app_of(pilot).source.state.done < 6

    played(test)


def test_themes_keys_notes_and_leaving() -> None:
    async def test(pilot: Pilot) -> None:
        themes = [app_of(pilot).theme]
        for _ in range(3):
            await press(pilot, "t")
            themes.append(app_of(pilot).theme)
        assert themes[0] == themes[3] and len(set(themes)) == 3
        assert "rows/pr." in await press(pilot, "question_mark")
        await press(pilot, "escape")
        assert "Notes" in await press(pilot, "n")
        await press(pilot, "escape")
        await press(pilot, "q")
        assert not app_of(pilot).is_running

    played(test)


def test_the_command_palette_runs_commands() -> None:
    async def test(pilot: Pilot) -> None:
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"show rows")
        await pilot.app.workers.wait_for_complete([*pilot.app.workers][-1:])
        for _ in range(40):
            await pilot.pause(0.05)
            if len(app_of(pilot).screen_stack) > 1 and "Show Rows" in await settle(pilot):
                break
        await pilot.press("enter")
        for _ in range(40):
            await pilot.pause(0.05)
            if app_of(pilot).picked == "rows":
                break
        assert app_of(pilot).picked == "rows"

    played(test)


def test_the_mouse_picks_screens_lines_columns_and_times() -> None:
    async def test(pilot: Pilot) -> None:
        await pilot.click("#head", offset=(24, 1))
        assert "candidate" in await settle(pilot)
        await pilot.click("#head", offset=(14, 1))
        assert "status" in await settle(pilot)
        await pilot.click("#row-lines", offset=(10, 3))
        assert (
            "too-long" in (await settle(pilot))
            and app_of(pilot).query_one(RowsView).query_one("#row-lines").cursor == 3
        )
        await pilot.click("#rows Heading", offset=(18, 0))
        await settle(pilot)
        assert app_of(pilot).query_one(RowsView).sorted_by == "status"
        await pilot.click("#row-lines", offset=(10, 1), times=2)
        assert "candidate" in await settle(pilot)
        await pilot.click("#keys", offset=(text(app_of(pilot)).splitlines()[-1].index("x Pruned"), 0))
        assert app_of(pilot).query_one(SearchView).living
        await pilot.click("#transport", offset=(30, 0))
        player = app_of(pilot).source.player
        assert player is not None and 0.1 < player.position / player.duration < 0.9

    played(test)


def test_the_next_failure_and_the_next_wrong_row_are_a_key_away() -> None:
    async def test(pilot: Pilot) -> None:
        rows = app_of(pilot).source.state.rows
        by_status = {status: [id for id, row in rows.items() if row.status == status] for status in ("failed", "wrong")}
        shown = await press(pilot, "exclamation_mark")
        (failed,) = by_status["failed"]
        assert app_of(pilot).query_one(SearchView).instance == failed and str(rows[failed].why) in shown
        for wrong in by_status["wrong"]:
            await press(pilot, "w")
            assert app_of(pilot).query_one(SearchView).instance == wrong

    played(test, LARGE)


def test_a_key_of_the_screen_below_closes_what_lies_over_it_and_does_its_work() -> None:
    async def test(pilot: Pilot) -> None:
        rules, tokens, copies = "What the rules of the plan", "in all", "command that repeats"
        assert rules in await press(pilot, "2", "r")
        shown = await press(pilot, "u")
        assert tokens in shown and rules not in shown
        assert rules in await press(pilot, "r")
        assert "Notes" in await press(pilot, "n")
        assert "KV pages" in await press(pilot, "4") and len(pilot.app.screen_stack) == 1
        assert copies in await press(pilot, "2", "y")
        notes = said(pilot)
        assert copies not in await press(pilot, "c") and notes == ["there is no other saved run to compare with"]
        await press(pilot, "y", "exclamation_mark")
        assert app_of(pilot).picked == "search" and len(pilot.app.screen_stack) == 1
        # What moves the cursor stays with the list, and a key that nobody knows does nothing.
        await press(pilot, "2", "y", "j", "G", "f12")
        assert len(pilot.app.screen_stack) == 2
        await press(pilot, "ctrl+p")
        assert type(pilot.app.screen).__name__ == "CommandPalette" and len(pilot.app.screen_stack) == 2

    played(test, LARGE)


@pytest.mark.parametrize("screen", "1345v")
def test_the_filter_is_a_key_away_from_every_screen(screen: str) -> None:
    async def test(pilot: Pilot) -> None:
        shown = await press(pilot, screen, "slash", *"status:failed", "enter")
        assert "1 of 6 shown" in shown and app_of(pilot).picked == "rows"
        await press(pilot, "escape", "escape")
        assert app_of(pilot).picked != "rows"

    played(test)


def test_compare_says_why_it_has_no_details() -> None:
    async def test(pilot: Pilot) -> None:
        notes = said(pilot)
        await press(pilot, "5", "d", "l")
        assert notes == ["no other run is chosen: c chooses one"] * 2

    played(test)


def test_the_last_line_names_the_keys_that_have_something_to_show() -> None:
    async def main() -> None:
        async with dashboard(HeldSource(), LARGE) as pilot:
            assert (await settle(pilot)).splitlines()[-1].split() == ["q", "Leave", "?", "Help"]

    async def test(pilot: Pilot) -> None:
        keys = (await settle(pilot)).splitlines()[-1]
        assert "enter Open" in keys and "! Next failure" in keys and "w Next wrong" in keys and "p Play" in keys
        assert "p Pause" in (await press(pilot, "left_parenthesis", "p")).splitlines()[-1]
        typing = (await press(pilot, "slash")).splitlines()[-1]
        assert "esc Show all" in typing and "q Leave" not in typing

    asyncio.run(main())
    played(test, LARGE)


def test_words_are_those_of_the_screen_and_of_the_line_of_the_cursor() -> None:
    async def test(pilot: Pilot) -> None:
        said = {"1": "rows that the model goes on with", "3": "row was read from it", "4": "taken from the system"}
        for screen, words in {**said, "v": "perfect verifier"}.items():
            told = " ".join((await press(pilot, screen, "question_mark")).replace("│", " ").split())
            assert words in told, told
            assert "an operator of the plan" not in told
            await press(pilot, "escape")

    played(test, LARGE)
    assert all(word in WORDS for word in (fate for _, fate, _ in FATES.values()))
    assert all(column.title in WORDS for column in COLUMNS if column.title)


def test_plots_have_the_time_below_them_that_they_are_of() -> None:
    async def test(pilot: Pilot) -> None:
        axis = re.compile(r"  (\d+:\d\d\S*) +(\d+:\d\d\S*) +(\d+:\d\d\S*) ")

        def times(shown: str) -> tuple[str, ...]:
            found = axis.search(shown.partition("KV pages of")[2])
            assert found is not None, shown
            return found.groups()

        whole, zoomed = times(await press(pilot, "4")), await press(pilot, "z")
        assert "Z shows more" in zoomed
        (begun, _, end), (later, _, same) = whole, times(zoomed)
        assert begun < later < same <= end
        assert times(await press(pilot, "less_than_sign"))[2] < same
        assert times(await press(pilot, "Z")) == whole

    played(test, LARGE)
