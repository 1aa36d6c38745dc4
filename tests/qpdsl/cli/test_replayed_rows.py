"""A saved run is shown as it was, though it recorded nothing: `qpdsl report RUN --trees`, and `qpdsl replay RUN`."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.cli.runs.replayed_rows import trace_of
from qpdsl.executor.events.events import Detail, Event, InstanceDone, OperatorDone, RowDone
from qpdsl.executor.events.trace import LineReader, read_trace
from qpdsl.runs.compare.side import read_run
from qpdsl.runs.store.run_folder import RunFolder
from tests.support.cli import Run
from tests.support.tui.read_page import Page

RUN = ("--no-greedy", "--input", "counting-500", "--limit", "4")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def told(events: list[Event]) -> Counter[str]:
    """What events say of rows, but for when, how long it took, and how the work was shared out meanwhile."""
    found: Counter[str] = Counter()
    for event in events:
        if isinstance(event, InstanceDone | RowDone):
            event = replace(event, seconds=0.0)
        elif isinstance(event, OperatorDone):
            event = replace(event, seconds=0.0, cached_tokens=0, counts={})
        elif not isinstance(event, Detail):
            continue
        found[repr(replace(event, at=0.0))] += 1
    return found


@pytest.mark.parametrize("program", ["beam_search", "weighted_best_of_n"])
@pytest.mark.parametrize("save", [["--save-samples"], []])
def test_it_says_what_the_run_said(qpdsl: Run, program: str, save: list[str]) -> None:
    ran = qpdsl("run", program, *RUN, *save, "--output", "out.jsonl", "--trace", "run.trace")
    assert ran.code == Exit.OK, ran.err
    recorded = told(list(read_trace(Path("run.trace"), LineReader())))
    with trace_of("last", (), None) as again:
        assert told(list(read_trace(again, LineReader()))) == recorded


def test_rows_are_chosen(qpdsl: Run) -> None:
    qpdsl("run", "beam_search", *RUN, "--output", "out.jsonl")
    ids = [row["id"] for row in map(json.loads, Path("out.jsonl").read_text("utf-8").splitlines())]

    def shown(*options: str) -> list[str]:
        made = qpdsl("report", "last", "--trees", "--overwrite", *options)
        assert made.code == Exit.OK, made.err
        return [row["id"] for row in Page.of(Path(made.out.strip()).read_text("utf-8")).table("Rows")]

    assert shown("--row", ids[2]) == [ids[2]] and shown("--rows", "2") == ids[:2]


def test_its_page_has_no_figure_of_the_replay(qpdsl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the run itself measured it has: when it began, and the seconds of its rows."""
    assert qpdsl("run", "beam_search", *RUN, "--save-samples", "--output", "out.jsonl").code == Exit.OK
    alone = qpdsl("report", "last")
    assert alone.code == Exit.OK, alone.err
    saved = read_run(RunFolder().find("last"))
    assert f"`qpdsl report {saved.info.id} --trees`" in Path(alone.out.strip()).read_text("utf-8")
    monkeypatch.setattr(time, "time", lambda: saved.record.started + 1e6)
    made = qpdsl("report", "last", "--trees")
    assert made.code == Exit.OK, made.err
    page = Page.of(Path(made.out.strip()).read_text("utf-8"))
    head = "\n".join(page.parts[""])
    assert "replayed from the saved run" in head
    assert datetime.fromtimestamp(saved.record.started).astimezone().isoformat(" ", "seconds") in head
    gone = {"Where the time went", "Rules", "Forwards over time", "Memory over time"}
    assert not gone & page.parts.keys() and {"Plan", "Where the tokens went", "Search"} <= page.parts.keys()
    assert not {"cached", "seconds", "share"} & page.table("Plan")[0].keys()
    assert "from the cache" not in "\n".join(page.parts["Where the tokens went"])
    assert {row["id"]: row["seconds"] for row in page.table("Rows")} == {
        row.outcome.id: f"{row.outcome.seconds:.2f}" for row in saved.rows
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trees", "--row", "nobody"], "has no row `nobody`"),
        (["--row", "1"], "the rows of `--trees`"),
        (["last", "--trees"], "`--trees` is of one saved run"),
    ],
)
def test_what_is_refused(qpdsl: Run, options: list[str], said: str) -> None:
    qpdsl("run", "greedy", *RUN, "--output", "out.jsonl")
    made = qpdsl("report", "last", *options)
    assert made.code == Exit.USAGE and said in made.err
