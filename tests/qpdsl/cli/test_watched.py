"""Whatever goes on for long can be watched: what it is, what it prepares, how far it is, and what is left."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from qpdsl.cli.commands.top import _line
from qpdsl.cli.console import keep_streams, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.live import live_runs
from qpdsl.cli.progress_notes import ProgressNotes
from qpdsl.cli.watched import watched
from qpdsl.executor.events.events import CellReached, Event, ModelsLoaded, Preparing, ProcessStarted, RunEnded
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.events.trace import LineReader, read_trace
from qpdsl.runs.sweep import Sweep
from qpdsl.runs.sweep_progress import CellProgress, SweepProgress
from qpdsl.tui.state.run_state import RunState
from tests.support.cli import SWEPT, Run, Terminal, write_rows


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QPDSL_RUNTIME_DIR", str(tmp_path / "rt"))
    monkeypatch.setenv("QPDSL_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)


def swept(qpdsl: Run, tmp_path: Path, *more: object) -> tuple[list[Event], RunState]:
    """An `eval` of three cells over eight rows, as whoever watches it sees it."""
    (tmp_path / "p.qp").write_text(SWEPT, "utf-8")
    asked = "Mia has {} boxes with 4 cards in each box. How many cards does Mia have?"
    write_rows(tmp_path / "in.jsonl", [{"problem": asked.format(n), "answer": str(n)} for n in range(2, 10)])
    args = ("--input", "in.jsonl", "--set", "n=2,4", "--set", "limit=8", "--format", "json", *more)
    ran = qpdsl("eval", "p.qp", *args)
    assert ran.code == Exit.OK, ran.err
    trace = next(iter(sorted(tmp_path.glob("*.trace"), reverse=True)))
    seen, state = list(read_trace(trace, LineReader())), RunState()
    for event in seen:
        state.add(event)
    return seen, state


def test_a_sweep_tells_its_cells_and_what_they_share(qpdsl: Run, tmp_path: Path) -> None:
    seen, state = swept(qpdsl, tmp_path, "--trace", "1.trace")
    assert isinstance(seen[0], ProcessStarted) and seen[0].command == "eval" and seen[0].programs == ("p.qp",)
    assert isinstance(seen[1], Preparing) and isinstance(seen[-1], RunEnded) and state.phase == "done"
    assert {cell: (reached.done, reached.rows, reached.running) for cell, reached in state.cells.items()} == {
        "sampled(n=2)": (8, 8, 0),
        "sampled(n=4)": (8, 8, 0),
        "plain": (8, 8, 0),
    }
    narrow, wide = state.cells["sampled(n=2)"], state.cells["sampled(n=4)"]
    # The two samples of n=2 are those of n=4, and whichever row came second drew none of them.
    assert narrow.shared_tokens + wide.shared_tokens == narrow.sampled_tokens
    assert narrow.judged == 8 and state.rows == {}
    running = [event.running for event in seen if isinstance(event, CellReached)]
    assert max(running) > 0
    again, resumed = swept(qpdsl, tmp_path, "--trace", "2.trace")
    assert {reached.done for reached in resumed.cells.values()} == {8}
    assert not any(isinstance(event, ModelsLoaded) for event in again)


def test_what_is_left_goes_by_what_is_drawn_not_by_rows() -> None:
    """Half of the rows found their samples drawn; the other half take as long as the drawn ones did."""
    progress = SweepProgress(Sweep([], lambda run: None), lambda: 150.0)  # type: ignore[arg-type, return-value]
    wide = CellProgress("n=16", 10, done=5, ended=5, drawn=5000)
    narrow = CellProgress("n=4", 10, done=10, ended=10, drawn=0)
    progress._cells, progress._begun = {"n=16": wide, "n=4": narrow}, 100.0
    left = progress.left()
    assert left is not None and 48 < left < 52
    progress._begun = None
    assert progress.left() is None


def test_top_lists_programs_and_progress(qpdsl: Run) -> None:
    with watched("eval", ["best_of_n", "greedy"]) as process:
        process.prepare("probing the server of m")
        assert _line(live_runs()[0])[-1] == "probing the server of m"
        process.stream.emit(ModelsLoaded(models=("m",), seconds=0.1))
        process.stream.emit(CellReached(cell="best_of_n", rows=8, done=3))
        process.stream.emit(CellReached(cell="best_of_n", rows=8, done=4))
        process.stream.emit(CellReached(cell="greedy", rows=8, done=1))
        listed = qpdsl("top", "--list").out.splitlines()
    assert listed[0].split() == ["pid", "command", "program", "time", "progress"]
    assert listed[1].split()[:2] == [str(os.getpid()), "eval"]
    assert "best_of_n, greedy" in listed[1] and listed[1].endswith("5 of 16 rows")
    assert live_runs() == []


def test_what_fails_while_it_prepares_has_an_end_too(
    qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[EventStream] = []
    monkeypatch.setattr("qpdsl.cli.watched.Server", lambda stream: streams.append(stream))
    assert qpdsl("run", "beam_search", "--input", tmp_path / "missing.jsonl").code == Exit.DATA
    seen: list[Event] = []
    streams[0].subscribe(seen.append, history=True)
    assert isinstance(seen[-1], RunEnded) and seen[-1].status == "failed" and "no input data" in str(seen[-1].error)


def test_a_note_stands_on_a_line_of_its_own_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        patch.setenv("TERM", "xterm")
        keep_streams()
        progress = ProgressNotes(EventStream(), 600.0)
        with progress.of_rows(4, 1):
            say("loading llm …")
            progress.rows_done(1, 75.0)
            say("note: one\nnote: two")
    keep_streams()
    before, _, after = terminal.text.partition("loading llm …")
    # The bar's line is cleared before a note is written in its place, and the bar comes again below it.
    assert before.endswith("\x1b[2K") and after.startswith("\n") and "1/4" in after and "1:15 left" in after
    assert "note: one\nnote: two\n" in terminal.text.replace("\r", "")
