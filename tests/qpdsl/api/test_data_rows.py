"""`qp.read_rows`: the rows of the command line's `--input`, as dictionaries."""

from __future__ import annotations

from pathlib import Path

import pytest

import qpdsl as qp
from tests.support.paths import ROOT

PUBLISHED = ROOT / "tests" / "qpdsl" / "runs" / "data" / "published"


def test_rows_of_a_published_set() -> None:
    rows = qp.read_rows(str(PUBLISHED / "gsm8k.jsonl"), dataset="gsm8k", skip=1)
    assert [(row["id"], row["answer"]) for row in rows] == [("2", "1450"), ("3", "-3")]
    assert rows[0]["problem"].startswith("A town of 1,200 people")


def test_rows_are_chosen_and_named(tmp_path: Path) -> None:
    file = tmp_path / "d.csv"
    file.write_text("question,level,key\na,1,x\nb,2,y\nc,2,z\n")
    rows = qp.read_rows(str(file), map={"problem": "question"}, id="key", where="level == 2", limit=1)
    assert rows == [{"question": "b", "problem": "b", "level": 2, "key": "y", "id": "y"}]


def test_what_cannot_be_read_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"problem": 1}\nnonsense\n')
    for name in ("none.jsonl", str(tmp_path / "d.jsonl")):
        with pytest.raises(qp.UserError):
            qp.read_rows(name)
