"""`docs/architecture.md`: where an addition begins, and the files that it names."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text("utf-8")
ROWS = re.findall(r"^\| an? [^|]*\*\*([a-z ]+)\*\*[^|]*\| `(\w+)` \| (.*) \|$", TEXT, re.MULTILINE)


def test_each_kind_of_addition_has_its_row() -> None:
    language = ["rule", "decode plan", "engine", "dialect", "verifier kind", "stage"]
    runs = ["grader", "data format", "named data set", "cluster backend", "way of a budgeted program"]
    assert [kind for kind, _, _ in ROWS] == [*language, *runs]


@pytest.mark.parametrize(("kind", "example", "begin"), ROWS, ids=[kind for kind, _, _ in ROWS])
def test_the_example_stands_where_an_addition_begins(kind: str, example: str, begin: str) -> None:
    files = [(ROOT / file).read_text("utf-8") for file in re.findall(r"`([\w/.]+\.\w+)`", begin)]
    assert [text for text in files if re.search(rf"\b{example}", text, re.IGNORECASE)] != []


def test_every_file_that_is_named_is_there() -> None:
    files = re.findall(r"`([\w/]+\.(?:py|md|lark|qp|toml))`", TEXT)
    assert [file for file in files if "/" in file and not (ROOT / file).is_file()] == []
    folders = re.findall(r"`([\w/]+/)`", TEXT)
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []
