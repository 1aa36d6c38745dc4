"""Sweeps and servers have screens of their own, and whatever prepares says what it does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from qpdsl.executor.events.events import (
    CellReached,
    EngineFigures,
    EngineStepped,
    Event,
    ModelsLoaded,
    Preparing,
    ProcessStarted,
    ReplicaGone,
    RequestReached,
)
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.widgets.palette import THEMES
from tests.support.tui.held_source import HeldSource
from tests.support.tui.screen import SMALL, dashboard, press, settle
from tests.support.tui.traces import recorded, write


def begun(command: str, *programs: str) -> ProcessStarted:
    return ProcessStarted(at=0.0, command=command, programs=programs, pid=1, wall=0.0, version="0")


def source_of(*seen: Event) -> HeldSource:
    source = HeldSource()
    source.state = RunState()
    for event in seen:
        source.state.add(event)
    return source


def test_a_process_says_what_it_prepares() -> None:
    async def main() -> None:
        source = source_of(begun("run", "beam_search"), Preparing(at=0.1, step="probing the server of vllm://m"))
        async with dashboard(source, SMALL) as pilot:
            shown = await settle(pilot)
            assert "probing the server of vllm://m" in shown and "run beam_search" in shown
            source.state.add(Preparing(at=3.0, step="loading llm, prm"))
            assert "loading llm, prm" in await settle(pilot)
            source.state.add(ModelsLoaded(at=4.0, models=("m",), seconds=1.0))
            assert "running" in await settle(pilot)

    asyncio.run(main())


def test_a_sweep_shows_its_cells_and_the_time_that_is_left() -> None:
    async def main() -> None:
        source = source_of(
            begun("eval", "best_of_n"),
            ModelsLoaded(at=0.5, models=("m",), seconds=0.5),
            CellReached(at=1.0, cell="best_of_n(n=4)", rows=50, done=50, right=30, judged=50, sampled_tokens=900),
            CellReached(
                at=1.0,
                cell="best_of_n(n=16)",
                rows=50,
                done=10,
                running=3,
                failed=1,
                right=7,
                judged=10,
                sampled_tokens=600,
                shared_tokens=150,
                left=130.0,
            ),
        )
        async with dashboard(source, (110, 24)) as pilot:
            shown = await settle(pilot)
            assert "1 Cells" in shown and "2 Engine" in shown and "Plan" not in shown
            assert "60/100 rows" in shown and "2:10 left" in shown and "eval best_of_n" in shown
            done, at_work = (line for line in shown.splitlines() if "best_of_n(n=" in line)
            assert "✔" in done and "50/50" in done and "60%" in done
            assert "●3" in at_work and "10/50" in at_work and "70%" in at_work and "25%" in at_work
            assert "1 of 2 cells are done" in shown
            assert "no steps" not in await press(pilot, "2") and pilot.app.picked == "engine"  # type: ignore[attr-defined]
            await press(pilot, "4", "3")
            assert pilot.app.picked == "engine"  # type: ignore[attr-defined]
            assert "best_of_n(n=16)" in await press(pilot, "tab")

    asyncio.run(main())


def test_cells_that_no_other_one_beats_are_marked() -> None:
    """As right for fewer tokens, or more right; with the half-width of Wilson's interval (95%) beside the share."""

    async def main() -> None:
        figures = {"few": (30, 900), "many": (45, 4000), "worse": (30, 1000), "dear": (45, 5000)}
        cells = [
            CellReached(at=1.0, cell=name, rows=50, done=50, right=right, judged=50, sampled_tokens=tokens)
            for name, (right, tokens) in figures.items()
        ]
        async with dashboard(source_of(begun("eval", "p"), *cells), (110, 24)) as pilot:
            lines = (await settle(pilot)).splitlines()[3 : 3 + len(cells)]
            assert ["◆" in line for line in lines] == [True, True, False, False]
            assert "60% ±14" in lines[0] and "90% ±11" in lines[1]

    asyncio.run(main())


def test_a_server_shows_requests_with_rates_percentiles_and_its_queue() -> None:
    async def main() -> None:
        seen: list[Event] = [begun("serve", "greedy"), ModelsLoaded(at=0.1, models=("m",), seconds=0.1)]
        for number in range(100):
            seen.append(RequestReached(at=1.0, request=f"r-{number:03}", program="greedy", status="waiting"))
            seconds = 0.5 if number < 98 else 9.0
            seen.append(
                RequestReached(
                    at=2.0,
                    request=f"r-{number:03}",
                    program="greedy",
                    status="answered",
                    seconds=seconds,
                    sampled_tokens=7,
                )
            )
        seen.append(RequestReached(at=3.0, request="r-failed", program="greedy", status="timeout", seconds=30.0))
        seen.append(RequestReached(at=3.0, request="r-runs", program="greedy", status="running"))
        seen.append(RequestReached(at=3.0, request="r-waits", program="greedy", status="waiting"))
        async with dashboard(source_of(*seen), (110, 24)) as pilot:
            shown = await settle(pilot)
            assert "1 Requests" in shown and "1 running" in shown and "1 waiting" in shown
            assert "101 ended in the last minute" in shown and "p50 0.5 s" in shown and "p99 9.0 s" in shown
            assert "1 not answered" in shown
            lines = shown.splitlines()
            assert "r-waits" in lines[3] and "r-runs" in lines[4] and "! timeout" in lines[5]

    asyncio.run(main())


def test_a_replica_that_is_gone_stands_last_and_says_why() -> None:
    def stepped(number: int) -> Event:
        figures = EngineFigures(f"m @ replica {number}", 1, 50, 0, 9, 100, 0, {"sequences": 5, "capacity": 128})
        return EngineStepped(at=1.0, report=figures)

    async def main() -> None:
        gone = ReplicaGone(at=2.0, replica="replica 1", why="was ended by SIGKILL")
        source = source_of(begun("serve", "greedy"), ModelsLoaded(at=0.1, models=("m",), seconds=0.1), stepped(1))
        async with dashboard(source, (110, 30)) as pilot:
            await settle(pilot)
            for event in (stepped(2), gone):
                source.state.add(event)
            shown = await press(pilot, "2")
            assert shown.index("m @ replica 2") < shown.index("m @ replica 1") < shown.index("gone: was ended")

    asyncio.run(main())


def test_the_plan_of_a_cluster_has_no_column_that_replicas_leave_empty(tmp_path: Path) -> None:
    def headings(process: ProcessStarted) -> str:
        async def main() -> str:
            path = write(tmp_path / "run.jsonl", [process, *recorded()])
            async with dashboard(path, (120, 30)) as pilot:
                return next(line for line in (await settle(pilot)).splitlines() if "operator" in line)

        return asyncio.run(main())

    here = begun("run", "p")
    assert " now " in headings(here) and " now " not in headings(replace(here, place="local:2"))


def test_marks_and_texts_stand_out_from_what_is_behind_them() -> None:
    """By the ratios of WCAG 2.2: 4.5 for text, 3 for signs and strokes."""
    for theme in THEMES:
        colours = {name: getattr(theme, name) for name in ("primary", "secondary", "success", "warning", "error")}
        texts = [*colours.values(), theme.foreground, *(theme.variables[name] for name in ("muted", "low", "high"))]
        for least, some in ((4.5, texts), (3.0, [theme.variables["faint"]])):
            for colour in some:
                assert contrast(colour, theme.background) >= least, (theme.name, colour)


def contrast(one: str | None, other: str | None) -> float:
    def brightness(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    assert one is not None and other is not None
    high, low = sorted((brightness(one), brightness(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
