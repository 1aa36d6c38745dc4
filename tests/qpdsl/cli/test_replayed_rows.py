"""A saved run is shown as it was, though it recorded nothing: `qpdsl report RUN --trees`, and `qpdsl replay RUN`."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.cli.runs.replayed_rows import trace_of
from qpdsl.executor.events.events import Detail, Event, InstanceDone, OperatorDone, RowDone
from qpdsl.executor.events.trace import LineReader, read_trace
from tests.support.cli import Run

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

    def shown(*options: str) -> Any:
        made = qpdsl("report", "last", "--trees", "--overwrite", *options)
        assert made.code == Exit.OK, made.err
        page = Path(made.out.strip()).read_text("utf-8")
        return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])

    chosen = shown("--row", ids[2])
    assert [row[0] for row in chosen["rows"]] == [ids[2]] and len(chosen["trees"]) == 1
    assert [row[0] for row in shown("--rows", "2")["rows"]] == ids[:2]


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
