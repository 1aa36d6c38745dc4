"""What `--output` writes is of the format that its name says."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from qpdsl.cli.exits import Exit
from tests.support.cli import Run, write_rows

PROGRAM = "program same(problem: text) -> text {\n  let answer = problem\n  return answer\n}\n"


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
    Path("same.qp").write_text(PROGRAM)
    write_rows(tmp_path / "in.jsonl", [{"problem": "=1+1", "answer": "2"}, {"problem": "-5", "answer": "-5"}])
    return ("run", "same.qp", "--input", "in.jsonl", "--no-greedy")


def test_results_are_of_the_format_of_the_name(qpdsl: Run, command: tuple[str, ...]) -> None:
    for name in ("o.jsonl", "o.json", "o.csv", "o.parquet"):
        assert qpdsl(*command, "--output", name).code == Exit.OK
        # Results are replaced where that is asked for, whatever their format.
        assert qpdsl(*command, "--output", name).code == Exit.USAGE
        assert qpdsl(*command, "--output", name, "--overwrite").code == Exit.OK
    lines = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    assert json.loads(Path("o.json").read_text()) == lines == pq.read_table("o.parquet").to_pylist()
    table = list(csv.DictReader(io.StringIO(Path("o.csv").read_text())))
    assert [row["answer"] for row in table] == ["'=1+1", "-5"] and [row["correct"] for row in table] == [
        "false",
        "true",
    ]


def test_a_dash_is_what_is_printed(qpdsl: Run, command: tuple[str, ...]) -> None:
    ran = qpdsl(*command, "--output", "-")
    assert ran.code == Exit.OK and ran.out == qpdsl(*command).out and not Path("-").exists()
    exported = qpdsl("runs", "export", "last", "--output", "-")
    assert exported.out == qpdsl("runs", "export", "last").out != ""


def test_runs_are_exported_in_the_format_of_the_name(qpdsl: Run, command: tuple[str, ...]) -> None:
    assert qpdsl(*command).code == Exit.OK
    for name in ("o.jsonl", "o.json", "o.csv", "o.parquet"):
        assert qpdsl("runs", "export", "last", "--output", name).code == Exit.OK
        assert qpdsl("runs", "export", "last", "--output", name, "--overwrite").code == Exit.OK
    assert [row["answer"] for row in pq.read_table("o.parquet").to_pylist()] == ["=1+1", "-5"]
    assert Path("o.csv").read_text() == qpdsl("runs", "export", "last", "--format", "csv").out
    assert len(json.loads(Path("o.json").read_text())["finished_rows"]) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("export", "last", "--output", "o.xlsx"), "no `.xlsx` file is written"),
        (("export", "last", "--output", "o.txt"), "no `.txt` file is written"),
        (("export", "last", "--output", "o.csv", "--format", "json"), "`--format json` is not the format of `o.csv`"),
        (("export", "last", "--format", "parquet"), "needs `--output`"),
    ],
)
def test_another_format_is_refused(qpdsl: Run, command: tuple[str, ...], options: tuple[str, ...], words: str) -> None:
    assert qpdsl(*command).code == Exit.OK
    ran = qpdsl("runs", *options)
    assert ran.code == Exit.USAGE and words in ran.err and not list(Path().glob("o.*"))
    ran = qpdsl(*command, "--output", "o.tsv")
    assert ran.code == Exit.USAGE and "no `.tsv` file is written" in ran.err and ran.out == ""


def test_a_table_is_there_where_its_picture_cannot_be_written(
    qpdsl: Run, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from qpdsl.cli.runs import sweep_run

    def drawn(scatter: object) -> str:
        # Another run has written the same file in the meantime.
        Path("p.svg").write_text("<!-- a plot of qpdsl -->")
        return "<svg/>"

    monkeypatch.setattr(sweep_run, "svg", drawn)
    ran = qpdsl("eval", "same.qp", "--input", "in.jsonl", "--plot", "p.svg")
    assert ran.code == Exit.USAGE and "accuracy" in ran.out and "50.0%" in ran.out and "p.svg" in ran.err


def test_a_table_is_of_the_format_of_the_name(qpdsl: Run, command: tuple[str, ...]) -> None:
    for name in ("t.csv", "t.json", "t.md", "t.txt"):
        assert qpdsl("eval", "same.qp", "--input", "in.jsonl", "--output", name).code == Exit.OK
    assert next(csv.DictReader(io.StringIO(Path("t.csv").read_text())))["accuracy"] == "0.5"
    assert json.loads(Path("t.json").read_text())["problems"] == 2
    assert "| program |" in Path("t.md").read_text()
    for options in (("--output", "t.parquet"), ("--output", "u.csv", "--format", "json")):
        assert qpdsl("eval", "same.qp", "--input", "in.jsonl", *options).code == Exit.USAGE
