"""`docs/use/runs.md`, comparing runs: its commands print what it shows. `QPDSL_REGENERATE=1` writes it anew."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from qpdsl.runs.compare.comparison import compare
from qpdsl.runs.compare.comparison_text import verdict
from tests.support.compared_runs import side
from tests.support.documents import check_commands, printed
from tests.support.paths import ROOT
from tests.support.user_cache import own_cache

PAGE = ROOT / "docs" / "use" / "runs.md"
RUNS = ROOT / "tests" / "qpdsl" / "runs" / "compare" / "counting_500.json"
TEXT = re.compile(r"^```text\n(.*?)\n```$", re.M | re.S)
# What is another at another time, on another machine or with another build.
VARYING = (
    (re.compile(r"\d{8}-\d{6}-\w{7}"), "RUN"),
    (re.compile(r"^ *(seconds|first token|each token|engine seconds|version|samples:) .*", re.M), r"\1"),
    # The last column of the operators.
    (re.compile(r"^((?:generate|operator) .*?)\S+(?: → \S+)?$", re.M), r"\1"),
)


def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Statistics of other tests would stand in the plan.
    own_cache(tmp_path / "cache", monkeypatch)
    # What a run times differs from run to run, and so does what is chosen by it.
    monkeypatch.setattr("qpdsl.session.analysis.keep_times", lambda *given: None)
    monkeypatch.chdir(tmp_path)
    check_commands(
        PAGE,
        lambda command: printed(command, capsys),
        VARYING,
        part=lambda text: text.partition("\n## Comparing runs\n")[2],
    )


def test_what_it_says_of_500_problems_is_so() -> None:
    runs = {name: [digit == "1" for digit in own] for name, own in json.loads(RUNS.read_text("utf-8"))["right"].items()}
    usual = runs["n=4, seed 0"]
    worse = usual.copy()
    for number in np.flatnonzero(usual)[:15]:
        worse[number] = False
    others = (runs["n=4, seed 0, naive"], worse, runs["n=4, seed 1"])
    said = [verdict(compare(side(usual), side(other))).text for other in others]
    assert TEXT.findall(PAGE.read_text("utf-8")) == said
