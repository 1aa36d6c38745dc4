"""`qpdsl whatif`: what a saved run answers is what a real run would give, and what it lacks is said."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.executor.models import quick_load
from qpdsl.runs.store import fingerprint
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.session import session
from tests.support.cli import SWEPT, Run, write_rows
from tests.support.saved_runs import cut_short
from tests.support.whatif_cases import compared, drawn_case

SAVED = ("run", "p.qp", "--program", "sampled", "--set", "n=6", "--input", "in.jsonl", "--save-samples", "--no-greedy")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with two programs in a file and four rows."""
    (tmp_path / "p.qp").write_text(SWEPT, "utf-8")
    asked = "Mia has {} boxes with 4 cards in each box. How many cards does Mia have?"
    write_rows(tmp_path / "in.jsonl", [{"problem": asked.format(n), "answer": str(n)} for n in range(2, 6)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cells(text: str) -> dict[str, dict[str, Any]]:
    """The cells of a result in JSON, by their values."""
    names = ("problems", "accuracy", "tokens", "tokens_in", "failed", "unanswered")
    found = json.loads(text)["cells"]
    return {
        f"{cell['program']} n={cell['parameters'].get('n')} {cell['choice']}": {name: cell[name] for name in names}
        for cell in found
    }


@pytest.mark.parametrize("seed", [2, 5, 24, 26])
def test_the_answer_is_that_of_a_real_run(seed: int, tmp_path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        found = compared(drawn_case(seed, rows=2), tmp_path)
    assert found.differences == found.false == []
    assert found.answered + found.open == 2


def test_no_weights_are_loaded_for_what_was_drawn(qpdsl: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qpdsl(*SAVED)

    def refused(*args: object) -> None:
        raise AssertionError("weights are loaded")

    with monkeypatch.context() as patch:
        patch.setattr(session, "load", refused)
        patch.setattr(quick_load, "load", refused)
        asked = qpdsl("whatif", "last", "--set", "n=1,2,4", "--format", "json")
    assert asked.code == Exit.OK, asked.err
    real = qpdsl("eval", "p.qp", "--program", "sampled", "--set", "n=1,2,4", "--input", "in.jsonl", "--format", "json")
    told = cells(asked.out)
    assert {name: own for name, own in told.items() if not name.endswith("as saved")} == cells(real.out)
    assert told["sampled n=6 as saved"]["problems"] == 4


def test_what_is_missing_is_counted_and_has_no_accuracy(qpdsl: Run, folder: Path) -> None:
    qpdsl(*SAVED)
    asked = qpdsl("whatif", "last", "--set", "n=4,8", "--format", "json")
    made = json.loads(asked.out)
    assert asked.code == Exit.ROW_FAILED
    assert [cell["parameters"]["n"] for cell in made["cells"]] == ["6", "4"]
    (open_,) = made["open"]
    assert (open_["problems"], open_["answered"], open_["samples"]) == (4, 0, 8)
    text = qpdsl("whatif", "last", "--set", "n=4,8").out
    assert "0 of 4       at least 8" in text
    assert "`--draw` draws what is missing." in text
    drawn = qpdsl("whatif", "last", "--set", "n=8", "--draw", "--format", "json")
    assert "drew 8 samples" in drawn.err
    real = qpdsl("eval", "p.qp", "--program", "sampled", "--set", "n=8", "--input", "in.jsonl", "--format", "json")
    assert cells(drawn.out)["sampled n=8 None"] == cells(real.out)["sampled n=8 None"]


def test_another_program_is_answered_too(qpdsl: Run, folder: Path) -> None:
    qpdsl("run", "best_of_n", "--set", "n=3", "--input", "counting-500", "--limit", "3", "--save-samples")
    asked = qpdsl("whatif", "last", "self_consistency", "weighted_best_of_n", "--set", "n=2", "--format", "json")
    assert asked.code == Exit.OK, asked.err
    assert asked.err.count("was asked about") == 0
    real = qpdsl(
        *("eval", "self_consistency", "weighted_best_of_n", "--set", "n=2", "--input", "counting-500", "--limit", "3"),
        *("--format", "json"),
    )
    told = {name: own for name, own in cells(asked.out).items() if not name.endswith("as saved")}
    assert told == cells(real.out)


def test_a_new_verifier_is_asked(qpdsl: Run, folder: Path) -> None:
    qpdsl("run", "self_consistency", "--set", "n=3", "--input", "counting-500", "--limit", "3", "--save-samples")
    asked = qpdsl("whatif", "last", "best_of_n", "--set", "n=3", "--format", "json")
    assert asked.code == Exit.OK, asked.err
    assert "`zoo/counting-prm` was asked about" in asked.err
    real = qpdsl("eval", "best_of_n", "--set", "n=3", "--input", "counting-500", "--limit", "3", "--format", "json")
    assert cells(asked.out)["best_of_n n=3 None"] == cells(real.out)["best_of_n n=3 None"]


def test_a_run_that_goes_on_has_all_samples(qpdsl: Run, folder: Path) -> None:
    qpdsl(*SAVED)
    whole = qpdsl("whatif", "last", "--set", "n=2", "--format", "json").out
    cut_short(RunFolder(), 2)
    part = qpdsl("whatif", "last", "--set", "n=2", "--format", "json")
    assert "2 of 4 rows are in run" in part.err
    assert cells(part.out)["sampled n=2 None"]["problems"] == 2
    assert qpdsl(*SAVED, "--resume").code == Exit.OK
    assert "samples: saved with the run, 4 rows" in qpdsl(*SAVED, "--reuse").err
    assert cells(qpdsl("whatif", "last", "--set", "n=2", "--format", "json").out) == cells(whole)


def test_what_cannot_be_asked_is_refused(qpdsl: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qpdsl(*SAVED[:-2])
    assert "has no samples" in qpdsl("whatif", "last").err
    qpdsl(*SAVED)
    assert "no program has the parameter `m`" in qpdsl("whatif", "last", "--set", "m=1").err
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "build", lambda: "0.0.1")
        refused = qpdsl("whatif", "last", "--set", "n=1")
        assert refused.code == Exit.USAGE
        assert "are not those that would be drawn now: the qpdsl version" in refused.err
    assert "`qpdsl whatif last p.qp --program plain`" in qpdsl("whatif", "last", "plain").err
    rows = (folder / "in.jsonl").read_text("utf-8")
    (folder / "in.jsonl").write_text(rows.replace("cards", "coins"), "utf-8")
    assert "the input is another now" in qpdsl("whatif", "last", "--set", "n=1").err
    (folder / "in.jsonl").write_text(rows, "utf-8")
    (folder / "p.qp").write_text(SWEPT.replace("temperature=1.5", "temperature=1.4"), "utf-8")
    assert "is another now than in run" in qpdsl("whatif", "last", "--set", "n=1").err
    qpdsl("eval", "p.qp", "--set", "n=1", "--input", "in.jsonl")
    assert "has no samples" in qpdsl("whatif", "last").err


def test_damaged_samples_are_left_out(qpdsl: Run, folder: Path) -> None:
    qpdsl(*SAVED)
    path = RunFolder().find("last")
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE samples SET data = x'00' WHERE number = 1")
    asked = qpdsl("whatif", "last", "--set", "n=2")
    assert "3 of 4 rows are in run" in asked.err
    assert "3 problems" in asked.out
    with RunFile.reading(path) as run:
        assert run.samples(1) is None
        assert run.samples_size()[0] == 4


def test_the_result_goes_to_a_file(qpdsl: Run, folder: Path) -> None:
    qpdsl(*SAVED)
    asked = ("whatif", "last", "--set", "n=2", "--format", "markdown")
    shown = qpdsl(*asked).out
    assert qpdsl(*asked, "--output", "out.md").code == Exit.OK
    assert (folder / "out.md").read_text("utf-8") == shown
    assert qpdsl(*asked, "--output", "out.md").code == Exit.USAGE
    assert qpdsl(*asked, "--output", "out.md", "--overwrite").code == Exit.OK
    assert qpdsl(*asked, "--output", "in.jsonl", "--overwrite").code == Exit.USAGE
