"""Keys, drawings and events in any order: no screen raises, at any size, whatever the run does meanwhile."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from qpdsl.executor.events.events import Event, InstanceDone, InstanceStarted, RowDone
from qpdsl.tui.screens import search
from qpdsl.tui.screens.search import SearchView
from qpdsl.tui.state.run_state import RunState
from tests.support.tui.held_source import HeldSource
from tests.support.tui.screen import LARGE, SMALL, dashboard, press, settle
from tests.support.tui.traces import recorded

KEYS = (
    *"1234", *"12224", "tab", "up", "down", "home", "end", "pageup", "pagedown", "enter", "escape", "f", "x", "space",
    "v", "left_square_bracket", "right_square_bracket", "s", "r", "d", "n", "question_mark",
)  # fmt: skip


def mixed(chance: random.Random) -> list[Event]:
    """The recorded events with some lost, and those of rows that run side by side in another order."""
    events = [event for event in recorded() if chance.random() > 0.1]
    for _ in range(len(events) // 3):
        at = chance.randrange(8, len(events) - 1)
        first, second = getattr(events[at - 1], "instance", None), getattr(events[at], "instance", None)
        if first is not None and second is not None and first != second:
            events[at - 1], events[at] = events[at], events[at - 1]
    return events


@pytest.mark.parametrize(("size", "seed"), [(SMALL, 0), ((110, 30), 1), (LARGE, 2), ((40, 12), 3)])
def test_no_order_of_events_keys_and_drawings_raises(size: tuple[int, int], seed: int) -> None:
    chance = random.Random(seed)
    events = mixed(chance)

    async def main() -> None:
        source = HeldSource()
        async with dashboard(source, size) as pilot:  # type: ignore[arg-type]
            while events:
                for _ in range(min(chance.randrange(1, 60), len(events))):
                    source.state.add(events.pop(0))
                    if chance.random() < 0.05:
                        # A drawing between two events, and the messages that it sends come later.
                        pilot.app.draw()  # type: ignore[attr-defined]
                await pilot.press(chance.choice(KEYS))
                if chance.random() < 0.2:
                    # A jump in a replay: another object of the same run.
                    again = RunState()
                    for event in recorded()[: chance.randrange(20, 400)]:
                        again.add(event)
                    source.state = again
            await settle(pilot)

    asyncio.run(main())


def test_the_search_draws_one_state_though_another_row_has_news() -> None:
    """The row with the latest news changes between a drawing and the message of the moved cursor."""
    events = recorded()

    async def main() -> None:
        source = HeldSource()
        async with dashboard(source, LARGE, first="search") as pilot:  # type: ignore[arg-type]
            view = pilot.app.query_one(SearchView)
            for event in events:
                before = source.state.latest
                source.state.add(event)
                if source.state.latest != before:
                    view.on_line_list_moved()
                    view.action_follow()

    asyncio.run(main())


def test_following_stays_on_a_row_to_its_end_and_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(search, "monotonic", lambda: clock[0])
    events = [event for event in recorded() if not isinstance(event, (InstanceDone, RowDone))]
    ends = {event.instance: event for event in recorded() if isinstance(event, InstanceDone) and not event.baseline}

    async def main() -> None:
        source = HeldSource()
        async with dashboard(source, SMALL, first="search") as pilot:  # type: ignore[arg-type]
            view = pilot.app.query_one(SearchView)
            seen = []
            for event in events:
                source.state.add(event)
                clock[0] += 1.0
                view.update(source.state)
                seen.append(view.instance)
            first = next(instance for instance in seen if instance is not None)
            assert set(seen) == {None, first} and source.state.latest != first
            source.state.add(ends[first])
            view.update(source.state)
            assert view.instance == source.state.latest
            now = view.instance
            source.state.add(replace(ends[first], instance=now))
            view.update(source.state)
            assert view.instance == now
            source.state.add(InstanceStarted(instance="another"))
            source.state.tree("another")
            view.update(source.state)
            assert view.instance == now
            clock[0] += 3.5
            view.update(source.state)
            assert view.instance == "another"

    asyncio.run(main())


def test_following_stays_where_the_cursor_was_moved() -> None:
    async def main() -> None:
        source = HeldSource()
        async with dashboard(source, SMALL, first="search") as pilot:  # type: ignore[arg-type]
            view = pilot.app.query_one(SearchView)
            for event in recorded()[:150]:
                source.state.add(event)
            view.update(source.state)
            here = view.instance
            await press(pilot, "down")
            for event in recorded()[150:]:
                source.state.add(event)
            await settle(pilot)
            assert view.instance == here != source.state.latest
            assert source.state.latest in await press(pilot, "f")

    asyncio.run(main())


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_failed_row_says_why_it_has_no_candidates(size: tuple[int, int]) -> None:
    async def main() -> None:
        source = HeldSource()
        for event in recorded():
            source.state.add(event)
        async with dashboard(source, size, first="search") as pilot:  # type: ignore[arg-type]
            pilot.app.query_one(SearchView).open_row("too-long")
            shown = await settle(pilot)
            assert shown.count("the context has 2404 tokens") == 2 and "anybody watched" not in shown
            seen = set()
            for _ in source.state.rows:
                pilot.app.query_one(SearchView).action_row(1)
                seen.add(pilot.app.query_one(SearchView).instance)
            assert seen == set(source.state.rows)

    asyncio.run(main())
