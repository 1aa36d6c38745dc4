"""`qpdsl eval`: its cells are runs as `qpdsl run` makes them, nothing runs twice, the table is the same each time."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_folder import RunFolder
from tests.support.cli import SWEPT, Run, write_rows
from tests.support.forked import PATIENCE, Forks

GRID = ("--set", "n=2,4", "--set", "limit=8", "--seeds", 2)
MAIN = """
from qpdsl.cli import main
sys.exit(main())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with two programs in a file, eight rows, and no runs."""
    (tmp_path / "p.qp").write_text(SWEPT, "utf-8")
    asked = "Mia has {} boxes with 4 cards in each box. How many cards does Mia have?"
    write_rows(
        tmp_path / "in.jsonl",
        [{"problem": asked.format(n), "answer": str(n), "level": n % 2} for n in range(2, 10)],
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QPDSL_RUNS", str(tmp_path / "runs"))
    return tmp_path


def kept() -> dict[tuple[str, str, int], dict[str, tuple[Any, ...]]]:
    """What every saved run has, by program, `n` and seed: answer, tokens and verdict by the row's id."""
    runs = RunFolder()
    found = {}
    for id in runs.ids():
        with RunFile.reading(runs.file(id)) as run:
            key = (run.record.program, str(run.record.parameters.get("n")), run.record.seed)
            assert run.info().status == "finished" and key not in found
            found[key] = {
                row.outcome.id: (row.outcome.answer, row.outcome.tokens_out, row.outcome.correct) for row in run.rows()
            }
    return found


def test_a_cell_has_the_rows_of_a_run(qpdsl: Run, folder: Path) -> None:
    ran = qpdsl("eval", "p.qp", "--input", "in.jsonl", *GRID, "--format", "json")
    assert ran.code == Exit.OK
    cells = kept()
    assert cells.keys() == {
        ("sampled", "2", 0), ("sampled", "4", 0), ("sampled", "2", 1), ("sampled", "4", 1),
        ("plain", "None", 0), ("plain", "None", 1),
    }  # fmt: skip
    for (program, n, seed), rows in cells.items():
        more = () if n == "None" else ("--set", f"n={n}")
        # A vote that ends early draws fewer tokens, and answers the same.
        whole = ("--disable-rule", "decided_vote", "--no-greedy")
        words = ("--program", program, *more, "--set", "limit=8", "--seed", seed, "--input", "in.jsonl", *whole)
        alone = qpdsl("run", "p.qp", *words)
        assert rows == {
            record["id"]: (record["answer"], record["tokens_out"], record["correct"]) for record in alone.records
        }
    record = json.loads(ran.out)
    assert [cell["parameters"] for cell in record["cells"]] == [
        {"n": "2", "limit": "8"}, {"n": "4", "limit": "8"}, {"limit": "8"},
    ]  # fmt: skip
    shares = [sum(right for *_, right in cells["plain", "None", seed].values()) / 8 for seed in (0, 1)]
    assert record["cells"][2]["accuracy"] == pytest.approx(sum(shares) / 2)
    # Two of four samples are the two, and greedy decoding is the same for every seed.
    assert "were shared, not drawn" in ran.err


def test_nothing_runs_twice_and_the_table_is_the_same(qpdsl: Run, folder: Path) -> None:
    words = ("eval", "p.qp", "--program", "sampled", "--input", "in.jsonl", *GRID)
    first = qpdsl(*words)
    assert "32 rows in" in first.err
    again = qpdsl(*words)
    assert (again.code, again.out) == (Exit.OK, first.out) and " rows in" not in again.err
    # A larger grid runs what is new, and fewer rows or seeds run nothing and lose nothing.
    larger = qpdsl("eval", "p.qp", "--program", "sampled", "--input", "in.jsonl", "--set", "n=2,4,8", *GRID[2:])
    assert "16 rows in" in larger.err and "32 were there" in larger.err
    fewer = qpdsl(
        "eval", "p.qp", "--program", "sampled", "--input", "in.jsonl", "--set", "n=4", *GRID[2:4], "--limit", 3
    )
    assert " rows in" not in fewer.err and "3 problems x 1 seed, n=4, limit=8\n" in fewer.out
    assert qpdsl(*words).out == first.out
    fresh = qpdsl(*words, "--fresh")
    assert "32 rows in" in fresh.err
    assert [line.split()[:7] for line in rows_of(fresh.out)] == [line.split()[:7] for line in rows_of(first.out)]


def rows_of(table: str) -> list[str]:
    return [line for line in table.splitlines() if line.startswith("sampled ")]


def test_more_rows_of_the_same_input_go_on(qpdsl: Run, folder: Path) -> None:
    words = ("eval", "p.qp", "--program", "plain", "--input", "in.jsonl")
    assert "3 rows in" in qpdsl(*words, "--limit", 3).err
    assert "5 rows in" in (ran := qpdsl(*words)).err and "3 were there" in ran.err
    assert len(RunFolder().ids()) == 1


def test_three_kills_and_the_same_table(
    qpdsl: Run, folder: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("eval", folder / "p.qp", "--input", folder / "in.jsonl", "--set", "n=2,8", *GRID[2:], "--format", "csv")
    for number in range(3):
        before = finished()
        process = forks.start(folder / f"killed-{number}", MAIN, *words)
        wait_for_rows(before + 5)
        os.kill(process.pid, signal.SIGKILL)
        assert forks.ended([process])[0][0] == -signal.SIGKILL
        assert before + 5 <= finished() < 48
    ended = qpdsl(*words)
    assert ended.code == Exit.OK
    monkeypatch.setenv("QPDSL_RUNS", str(folder / "other-runs"))
    whole = qpdsl(*words)
    assert without_seconds(ended.out) == without_seconds(whole.out)


def finished() -> int:
    """How many rows are saved, of all runs."""
    return sum(info.totals.done for info in RunFolder().infos())


def wait_for_rows(count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while finished() < count:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def without_seconds(table: str) -> list[dict[str, str]]:
    lines = list(csv.DictReader(io.StringIO(table)))
    return [{name: value for name, value in line.items() if "seconds" not in name} for line in lines]


def test_an_interrupt_keeps_what_is_finished(folder: Path, forks: Forks) -> None:
    process = forks.start(folder / "ended", MAIN, "eval", folder / "p.qp", "--input", folder / "in.jsonl", *GRID)
    wait_for_rows(3)
    os.kill(process.pid, signal.SIGINT)
    assert forks.ended([process])[0][0] == Exit.INTERRUPTED
    assert "of 48 rows are finished" in process.err and "the same command goes on from there" in process.err
    assert finished() >= 3 and {info.state for info in RunFolder().infos()} <= {"finished", "interrupted"}


def test_a_row_that_fails_fails_alone(qpdsl: Run, folder: Path) -> None:
    ran = qpdsl("eval", "p.qp", "--program", "plain", "--input", "in.jsonl", "--row-timeout", "0.0001")
    assert ran.code == Exit.ROW_FAILED and "8 rows failed" in ran.err and "failed" in ran.out
    ran = qpdsl("eval", "p.qp", "--program", "plain", "--input", "in.jsonl", "--row-timeout", "0.0001", "--limit", 1)
    assert "note: 1 row failed; `qpdsl runs show` says why, `--fresh` runs it again" in ran.err


def test_what_the_checker_warns_of_is_said_once(qpdsl: Run, folder: Path) -> None:
    text = SWEPT.replace("  vote answer\n", "  extract unused = /x/\n  vote answer\n")
    (folder / "p.qp").write_text(text, "utf-8")
    ran = qpdsl("eval", "p.qp", "--input", "in.jsonl", "--limit", 1, *GRID)
    assert ran.code == Exit.OK
    assert ran.err.count("warning[QP232]: column `unused` is never read") == 1


def test_rows_without_an_answer_are_counted(qpdsl: Run, folder: Path) -> None:
    (folder / "p.qp").write_text(SWEPT.replace("/(\\d)/", "/(no such text)/"), "utf-8")
    ran = qpdsl("eval", "p.qp", "--program", "plain", "--input", "in.jsonl", "--format", "json")
    cell = json.loads(ran.out)["cells"][0]
    assert (cell["failed"], cell["unanswered"], cell["accuracy"]) == (0, 8, 0.0)
    shown = json.loads(qpdsl("runs", "show", cell["runs"][0], "--format", "json").out)
    assert (shown["done"], shown["failed"], shown["unanswered"], shown["graded"]) == (8, 0, 8, 8)
    assert "8 of 8, 8 without an answer" in qpdsl("runs", "show", cell["runs"][0]).out


def test_a_row_that_the_grader_cannot_take_is_kept_and_graded_by_the_next_call(qpdsl: Run, folder: Path) -> None:
    (folder / "own.py").write_text("def grade(row):\n    return 1 / row['level'] > 0\n")
    words = ("eval", "p.qp", "--input", "in.jsonl", *GRID, "--grader", "python:own.py:grade", "--format", "csv")
    first = qpdsl(*words)
    assert first.code == Exit.ROW_FAILED and "48 rows in" in first.err
    assert (
        "the grader failed on answers of 24 rows, which count as wrong" in first.err
        and "ZeroDivisionError" in first.err
    )
    assert {row["accuracy"] for row in csv.DictReader(io.StringIO(first.out))} == {"0.5"}
    again = qpdsl(*words)
    assert (again.code, again.out) == (first.code, first.out) and "rows in" not in again.err
    (folder / "own.py").write_text("def grade(row):\n    return row['level'] == 1\n")
    mended = qpdsl(*words)
    assert mended.code == Exit.OK and "rows in" not in mended.err
    assert {row["accuracy"] for row in csv.DictReader(io.StringIO(mended.out))} == {"0.5"}


def test_a_value_that_every_row_sets_is_no_axis(qpdsl: Run, folder: Path) -> None:
    rows = [{"problem": "1?", "answer": "1", "n": 2}, {"problem": "2?", "answer": "2", "n": 3}]
    write_rows(folder / "set.jsonl", rows)
    words = ("eval", "p.qp", "--program", "sampled", "--input", "set.jsonl")
    ran = qpdsl(*words, "--set", "n=2,4")
    assert (ran.code, ran.out) == (Exit.USAGE, "") and not RunFolder().ids()
    assert "`--set n=…` makes equal cells of `sampled`: every row of `set.jsonl` has a `n` of its own" in ran.err
    assert "help: leave out `--set n=…`, or take the field `n` out of the rows" in ran.err
    assert qpdsl(*words, "--set", "limit=8,9").code != Exit.USAGE
    write_rows(folder / "set.jsonl", [rows[0], {"problem": "2?", "answer": "2"}])
    assert qpdsl(*words, "--set", "n=2,4").code != Exit.USAGE


def test_fields_that_are_used_are_not_said_to_be_unused(qpdsl: Run, folder: Path) -> None:
    words = ("eval", "p.qp", "--program", "plain", "--input", "in.jsonl")
    (folder / "own.py").write_text("def grade(row):\n    return row['level'] == 1\n")
    assert "`level` is not used" in qpdsl(*words).err
    assert "`level` is not used" not in qpdsl(*words, "--by", "level").err
    assert "`level` is not used" not in qpdsl(*words, "--grader", "python:own.py:grade").err


@pytest.mark.parametrize("form", ["text", "markdown", "json", "csv"])
def test_files_are_written_whole_and_replaced_on_request(qpdsl: Run, folder: Path, form: str) -> None:
    words = ("eval", "p.qp", "--program", "sampled", "--input", "in.jsonl", *GRID, "--format", form)
    shown = qpdsl(*words).out
    files = ("--output", "table", "--plot", "plot.svg")
    written = qpdsl(*words, *files)
    assert written.out == "" and "95% interval" in written.err
    assert "note: wrote `table`\nnote: wrote `plot.svg`\n" in written.err
    assert (folder / "table").read_text("utf-8") == shown
    plot = (folder / "plot.svg").read_text("utf-8")
    assert plot.startswith("<svg ") and "sampled n=2" in plot
    ran = qpdsl(*words, *files)
    assert ran.code == Exit.USAGE and "`--overwrite` replaces it" in ran.err
    assert qpdsl(*words, *files, "--overwrite").code == Exit.OK
    assert (folder / "plot.svg").read_text("utf-8") == plot


MISTAKES = [
    pytest.param(words, code, message, id=" ".join(words))
    for words, code, message in (
        (("--set", "m=1"), Exit.USAGE, "no program has the parameter `m`"),
        (("--set", "n=0,2"), Exit.USAGE, "sampled(n=0): "),
        (("--set", "n=many"), Exit.USAGE, "`n` takes a whole number"),
        (("--set", "n=1,"), Exit.USAGE, "an empty value"),
        (("--baseline", "sampled(n=3)"), Exit.USAGE, "`--baseline`: there is no single cell"),
        (("--by", "colour"), Exit.USAGE, "the rows have no field `colour`"),
        (("--model", "other=zoo/counting"), Exit.USAGE, "no program has the model `other`"),
        (("--input", "-"), Exit.USAGE, "`--input -` can be read once"),
        (("--grader", "nobody"), Exit.USAGE, "nobody"),
        (("--cluster", "moon:3"), Exit.USAGE, "moon"),
        (("--input", "none.jsonl"), Exit.DATA, "there is no input data `none.jsonl`"),
        (("--overwrite",), Exit.USAGE, "`--overwrite` needs `--output`, `--plot` or `--trace`"),
        (("--output", "p.qp"), Exit.USAGE, "the program"),
        (("--plot", "in.jsonl", "--overwrite"), Exit.USAGE, "the input data"),
        (("--seeds", "0"), Exit.USAGE, "--seeds"),
    )
]


@pytest.mark.parametrize(("words", "code", "message"), MISTAKES)
def test_mistakes(qpdsl: Run, folder: Path, words: tuple[str, ...], code: Exit, message: str) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    given = ("--input", "in.jsonl") if "--input" not in words else ()
    ran = qpdsl("eval", "p.qp", *given, "--limit", 2, *words)
    assert (ran.code, ran.out) == (code, "") and message in ran.err
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_setting_that_all_cells_share_is_told_once(qpdsl: Run, folder: Path) -> None:
    command = ("eval", "p.qp", "--program", "sampled", "--input", "in.jsonl", "--by", "level", "--set", "limit=8")
    one = qpdsl(*command, "--set", "n=2").out
    assert one.startswith("in.jsonl: 8 problems x 1 seed, limit=8, n=2\n") and "parameters" not in one
    two = qpdsl(*command, "--set", "n=2,4").out
    assert two.startswith("in.jsonl: 8 problems x 1 seed, limit=8\n") and "sampled  n=4 " in two
    (cell,) = csv.DictReader(io.StringIO(qpdsl(*command, "--set", "n=2", "--format", "csv").out))
    assert cell["parameters"] == "limit=8 n=2"
