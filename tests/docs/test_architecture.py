"""The table of additions in `docs/architecture.md`: the files that it names are those of the last one of each kind."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text("utf-8")
# What the example of a row is called in code, where that differs.
WORDS = {"speculative_expansion": "speculative_expansion|run_ahead", "early_exit": "early_exit|EarlyExit|exits"}
ROWS = re.findall(r"^\| an? [^|]*\*\*([a-z ]+)\*\*[^|]*\| `(\w+)` \| (.*) \|$", TEXT, re.MULTILINE)


def test_each_kind_of_addition_has_its_row() -> None:
    language = ["rule", "decode plan", "engine", "dialect", "verifier kind", "stage"]
    runs = ["grader", "data format", "named data set", "cluster backend", "way of a budgeted program"]
    assert [kind for kind, _, _ in ROWS] == [*language, *runs]


@pytest.mark.parametrize(("kind", "example", "touched"), ROWS, ids=[kind for kind, _, _ in ROWS])
def test_the_example_stands_in_every_file(kind: str, example: str, touched: str) -> None:
    word = re.compile(rf"\b({WORDS.get(example, example)})", re.IGNORECASE)
    files = re.findall(r"`([\w/.]+\.\w+)`", touched)
    assert len(files) >= 3
    # An engine is told by what it does, and the session has no place for one that is a test's.
    named = [file for file in files if kind != "engine" or file.startswith("tests/")]
    assert [file for file in named if not word.search((ROOT / file).read_text("utf-8"))] == []


def test_every_file_that_is_named_is_there() -> None:
    files = re.findall(r"`([\w/]+\.(?:py|md|lark|qp|toml))`", TEXT)
    assert [file for file in files if "/" in file and not (ROOT / file).is_file()] == []
    folders = re.findall(r"`([\w/]+/)`", TEXT)
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []
