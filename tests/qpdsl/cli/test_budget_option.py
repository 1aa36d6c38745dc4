"""`--budget`: what a program that leaves its ways open may take, and what the run keeps of how it was chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qpdsl.run_store.run_file import RunFile
from qpdsl.run_store.run_folder import RunFolder
from tests.support.cli import Run
from tests.support.kept_runs import cut_short

TEXT = r"""
model llm = "zoo/counting"

program open(problem: text, n: int = auto(1, 2)) -> text {
  chat user=problem
  generate llm n=n temperature=0.8 max_tokens=40
  extract answer = /(\d+)/
  vote answer
}
"""
ROWS = [f"Mia has {n} boxes with 4 cards in each box. How many cards does Mia have?" for n in range(2, 6)]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "open.qp"
    path.write_text(TEXT, "utf-8")
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"problem": row}) + "\n" for row in ROWS), "utf-8")
    return path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "`open` leaves it to a budget how it runs, and has none"),
        (["--budget", "toks=5"], "did you mean `tokens`?"),
        (["--budget", "5"], "it takes UNIT=AMOUNT"),
        (["--budget", "tokens=0"], "tokens is a number over 0, not `0`"),
        (["--budget", "tokens=nan"], "tokens is a number over 0, not `nan`"),
        (["--budget", "tokens=9", "--set", "n=2"], "`open` leaves nothing to a budget"),
    ],
)
@pytest.mark.parametrize("command", ["run", "explain"])
def test_a_budget_that_does_not_do_is_refused(
    qpdsl: Run, program: Path, command: str, given: list[str], message: str
) -> None:
    ran = qpdsl(command, program, *(["--set", "problem=x"] if command == "run" else []), *given)
    assert ran.code == 2
    assert message in ran.err


def test_explain_shows_the_ways_and_what_was_learned(qpdsl: Run, program: Path) -> None:
    ran = qpdsl("explain", program, "--budget", "tokens=90")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert "└ open(n=2)" in lines
    assert "budget: 90 tokens a problem, on average over problems" in lines
    assert any(line.startswith("nothing was learned yet") for line in lines)
    policy = json.loads(qpdsl("explain", program, "--budget", "tokens=90", "--format", "json").out)["policy"]
    assert (policy["unit"], policy["budget"], policy["turns"]) == ("tokens", 90.0, {})


def test_a_width_that_is_given_needs_no_budget(qpdsl: Run, program: Path) -> None:
    ran = qpdsl("explain", program, "--set", "n=2")
    assert ran.code == 0
    assert "strategy" not in ran.out


def test_a_resumed_run_goes_on_by_the_policy_that_it_began_with(
    qpdsl: Run, program: Path, rows: Path, tmp_path: Path
) -> None:
    def ran(name: str, *more: str) -> bytes:
        path = tmp_path / name
        done = qpdsl("run", program, "--input", rows, "--budget", "tokens=90", "--output", path, *more)
        assert done.code == 0, done.err
        return path.read_bytes()

    whole = ran("whole.jsonl")
    id = cut_short(RunFolder(), 2)
    with RunFile.reading(RunFolder().file(id)) as run:
        before = run.record.policy
    assert ran("rest.jsonl", "--resume") == whole
    with RunFile.reading(RunFolder().file(id)) as run:
        assert run.record.policy == before is not None
