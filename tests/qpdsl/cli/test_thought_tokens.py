"""Where tokens are reported, those of thoughts are told apart; of models that do not think nothing is said of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from qpdsl.budgets.observations import spend
from qpdsl.cli.exits import Exit
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_folder import RunFolder
from tests.support.cli import Ran, Run, write_rows

PROGRAM = """\
model llm = "zoo/counting-thinker"

program p(problem: text, bound: int = 8) -> text {
  chat user=problem
  generate llm think=bound max_tokens=6
}
"""
ASKED = "Mia has {} boxes with 4 cards in each box. How many cards does Mia have?"
BUDGETED = """\
model llm = "zoo/counting-thinker"

program p(problem: text) -> text within budget(thought_tokens=20) {
  chat user=problem
  generate llm n=auto(2, 4) think=8 as /1/
  vote text
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a program, two rows, and no runs."""
    (tmp_path / "p.qp").write_text(PROGRAM, "utf-8")
    write_rows(tmp_path / "in.jsonl", [{"problem": ASKED.format(n), "answer": str(4 * n)} for n in (2, 3)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QPDSL_RUNS", str(tmp_path / "runs"))
    return tmp_path


def told(qpdsl: Run, *args: object) -> Ran:
    done = qpdsl(*args)
    assert done.code in (Exit.OK, Exit.ROW_FAILED), done.err
    return done


def fact(lines: str, name: str) -> str:
    return next(line for line in lines.splitlines() if line.strip().startswith(name))


def single(qpdsl: Run, *more: object) -> tuple[str, dict[str, object]]:
    asked = ("run", "p.qp", "--set", f"problem={ASKED.format(2)}", *more)
    return fact(told(qpdsl, *asked).out, "tokens"), json.loads(told(qpdsl, *asked, "--json").out)


def test_a_single_run(qpdsl: Run, folder: Path) -> None:
    line, record = single(qpdsl)
    assert 0 < int(str(record["thought_tokens"])) <= 8 < int(str(record["tokens_out"]))
    assert line.endswith(f"{record['tokens_out']} out ({record['thought_tokens']} thought)")
    line, record = single(qpdsl, "--set", "bound=0")
    assert line.endswith(" out") and "thought_tokens" not in record


def saved(qpdsl: Run, *more: object) -> Sequence[dict[str, object]]:
    told(qpdsl, "run", "p.qp", "--input", "in.jsonl", "--output", "out.jsonl", "--overwrite", *more)
    return [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]


def test_a_run_of_rows_and_what_is_saved_of_it(qpdsl: Run, folder: Path) -> None:
    records = saved(qpdsl)
    sums = [sum(int(str(record[name])) for record in records) for name in ("tokens_out", "thought_tokens")]
    assert list(records[0])[:6] == ["id", "answer", "score", "tokens_in", "tokens_out", "thought_tokens"]
    assert 0 < sums[1] <= 16 < sums[0]
    shown = told(qpdsl, "runs", "show", "last")
    assert fact(shown.out, "tokens").endswith(f"{sums[0]} out ({sums[1]} thought)")
    assert "thought" in told(qpdsl, "runs", "show", "last", "--rows").out
    listed = told(qpdsl, "runs").out.splitlines()
    assert listed[0].split()[-3:] == ["tokens", "thought", "program"] and f"  {sums[1]}  " in listed[1]
    assert json.loads(told(qpdsl, "runs", "--format", "json").out)[0]["thought_tokens"] == sums[1]
    with RunFile.reading(RunFolder().find("last")) as run:
        outcomes = [row.outcome for row in run.rows()]
    assert [outcome.thought_tokens for outcome in outcomes] == [record["thought_tokens"] for record in records]
    assert sum(spend(outcome, "thought_tokens") for outcome in outcomes) == sums[1]
    # Without a thought all is as it was for models that have none.
    plain = saved(qpdsl, "--set", "bound=0")
    assert not any("thought_tokens" in record for record in plain)
    assert fact(told(qpdsl, "runs", "show", "last").out, "tokens").endswith(" out")
    compared = told(qpdsl, "diff", "last", "last-1")
    assert fact(compared.out, "thought tokens a problem").split()[4:6] == ["0", f"{sums[1] / 2:.3g}"]


def test_a_table_of_cells(qpdsl: Run, folder: Path) -> None:
    args = ("eval", "p.qp", "--input", "in.jsonl", "--set", "bound=0,8")
    text = told(qpdsl, *args).out
    assert text.splitlines()[2].split()[5:8] == ["tokens", "thought", "seconds"]
    assert "thought: those of them that are thoughts." in text
    cells = json.loads(told(qpdsl, *args, "--format", "json").out)["cells"]
    assert "thought_tokens" not in cells[0] and 0 < cells[1]["thought_tokens"] <= 8
    assert told(qpdsl, *args, "--format", "csv").out.splitlines()[0].endswith(",thought_tokens")
    plain = told(qpdsl, *args[:-1], "bound=0")
    assert "thought" not in plain.out


def test_explain_analyze(qpdsl: Run, folder: Path) -> None:
    args = ("run", "p.qp", "--set", f"problem={ASKED.format(2)}", "--analyze")
    shown = told(qpdsl, *args).err
    assert "8 of 18 sampled are thought" in shown and "8 of 18 sampled tokens are thought" in shown
    assert "thought" not in told(qpdsl, *args, "--set", "bound=0").err


def test_a_budget_of_thoughts(qpdsl: Run, folder: Path) -> None:
    (folder / "p.qp").write_text(BUDGETED, "utf-8")
    assert "budget: 20 thought tokens a problem" in told(qpdsl, "explain", "p.qp").out
    assert "budget: 9 thought tokens a problem" in told(qpdsl, "explain", "p.qp", "--budget", "thought_tokens=9").out
    assert "unknown" not in told(qpdsl, "run", "p.qp", "--set", f"problem={ASKED.format(2)}").err
