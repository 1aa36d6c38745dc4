"""`--budget`: what a program that leaves its ways open may take, and what the run keeps of how it was chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_folder import RunFolder
from tests.support.cli import Run
from tests.support.saved_runs import cut_short

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
        ([], "`open` needs a budget, which decides how it runs"),
        (["--budget", "toks=5"], "did you mean `tokens`?"),
        (["--budget", "5"], "it takes UNIT=AMOUNT"),
        (["--budget", "tokens=0"], "tokens is a number over 0, not `0`"),
        (["--budget", "tokens=nan"], "tokens is a number over 0, not `nan`"),
        (["--budget", "tokens=9", "--set", "n=2"], "`open` leaves nothing to a budget"),
        (["--budget", "accuracy=1"], "accuracy is a share between 0 and 1, not `1`"),
        (["--budget", "accuracy=0.9 or toks=5"], "did you mean `tokens`?"),
        (["--budget", "accuracy=0.9 or 5"], "it takes UNIT=AMOUNT"),
        (["--budget", "tokens=9 or cost=5"], "`or` follows `accuracy=…`, not `tokens`"),
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
    assert "└ n=2" in lines
    assert "budget: 90 tokens a problem, on average over problems" in lines
    assert any(line.startswith("nothing was learned yet") for line in lines)
    policy = json.loads(qpdsl("explain", program, "--budget", "tokens=90", "--format", "json").out)["policy"]
    assert (policy["unit"], policy["budget"], policy["turns"]) == ("tokens", 90.0, {})


def test_a_share_of_right_answers_that_nothing_shows_is_said_not_to_be_certified(
    qpdsl: Run, program: Path, rows: Path
) -> None:
    lines = qpdsl("explain", program, "--budget", "accuracy=0.9").out.splitlines()
    assert "target: 90% right for the least tokens, on average over problems" in lines
    words = "not promised: 90% right: no saved rows are left to test it on; the most expensive strategy is run"
    assert words in lines and "first n=2" in lines
    ran = qpdsl("eval", program, "--input", rows, "--budget", "accuracy=0.9,0.8 or tokens=90")
    assert ran.code == 0 and f"warning: {words}" in ran.err and "it is given up for the limit" in ran.err
    assert "accuracy=0.9" in ran.out and "accuracy=0.8 or tokens=90" in ran.out


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


def test_what_decided_is_said_and_decides_again_where_it_is_named(
    qpdsl: Run, program: Path, rows: Path, tmp_path: Path
) -> None:
    """With nothing measured `n=1` is estimated at 40 tokens, and `n=2` at 80; it takes fewer."""

    def ran(*more: str) -> tuple[str, int]:
        done = qpdsl("run", program, "--input", rows, "--no-greedy", "--budget", "tokens=75", *more)
        assert done.code == 0, done.err
        return done.err, sum(record["tokens_out"] for record in done.records)

    said, tokens = ran()
    assert "note: `n=1` runs first: nothing was learned yet; this strategy is estimated at" in said
    [first] = RunFolder().ids()
    said, more = ran()
    assert more > tokens and f"estimated at {2 * tokens / len(ROWS):,.4g} tokens a problem, by what others took" in said
    said, again = ran("--policy", first)
    assert again == tokens and "runs first" not in said
    assert qpdsl("runs").out.count("open tokens=75 zoo/counting") == 3
    ran()
    cut_short(RunFolder(), 2)
    options = ("--no-greedy", "--budget", "tokens=75", "--resume", "--policy", first)
    changed = qpdsl("run", program, "--input", rows, *options)
    assert changed.code == 2 and "what the budget decides by" in changed.err
    refused = qpdsl("run", program, "--input", rows, "--budget", "tokens=9", "--policy", first)
    assert refused.code == 2 and f"run `{first}` decided nothing for `open` under this budget" in refused.err


@pytest.mark.parametrize("command", ["run", "explain"])
def test_a_policy_with_nothing_to_decide_is_refused(qpdsl: Run, program: Path, command: str) -> None:
    given = [program] if command == "explain" else [program, "1"]
    closed = qpdsl(command, *given, "--set", "n=2", "--policy", "last")
    assert closed.code == 2 and "so there is nothing to decide" in closed.err
    plain = qpdsl(command, "greedy", *given[1:], "--policy", "last")
    assert plain.code == 2 and "`greedy` has no budget, so there is nothing to decide" in plain.err


def test_too_few_rows_for_a_warm_up_are_said_and_their_spend_is_measured(
    qpdsl: Run, program: Path, tmp_path: Path
) -> None:
    graded = tmp_path / "graded.jsonl"
    graded.write_text("".join(json.dumps({"problem": row, "answer": "4"}) + "\n" for row in ROWS), "utf-8")
    ran = qpdsl("run", program, "--input", graded, "--no-greedy", "--budget", "tokens=50")
    assert ran.err.count("no warm-up: it takes 48 rows with a right answer, and there are 4\n") == 1
    spent = sum(record["tokens_out"] for record in ran.records) / len(ROWS)
    told = qpdsl("explain", program, "--budget", "tokens=50").out
    assert f"this strategy is estimated at {2 * spent:,.4g} tokens a problem, by what others took in run" in told
    assert "by the budget, 1 of 2 ways" in told


def test_runs_of_strategies_are_told_apart(qpdsl: Run, program: Path, rows: Path) -> None:
    table = qpdsl("eval", program, "--input", rows, "--ways").out
    listed = qpdsl("runs").out
    for way in ("n=1", "n=2"):
        assert f"open {way} zoo/counting" in listed and f"open     {way}" in table


PROBLEM = ("--set", f"problem={ROWS[0]}")


def test_a_budget_that_no_way_is_thought_to_keep_is_said_before_the_run(
    qpdsl: Run, program: Path, rows: Path, tmp_path: Path
) -> None:
    words = "warning: `n=1` runs, which may not keep the budget of 5 tokens a problem: nothing was learned yet"
    assert words in qpdsl("run", program, *PROBLEM, "--budget", "tokens=5").err
    ran = qpdsl("run", program, "--input", rows, "--budget", "tokens=5", "--output", tmp_path / "out.jsonl")
    assert ran.code == 0 and ran.err.count(words) == 1
    # The run took less than was thought.
    assert "may not keep" not in qpdsl("eval", program, "--input", rows, "--budget", "tokens=5,900").err
    for likely in ("run", program, *PROBLEM), ("explain", program):
        assert "may not keep" not in qpdsl(*likely, "--budget", "tokens=900").err


def test_a_budget_of_which_nothing_is_known_is_said_to_be_so(qpdsl: Run, program: Path) -> None:
    ran = qpdsl("run", program, *PROBLEM, "--budget", "seconds=5")
    assert ran.code == 0 and "whether it keeps the budget of 5 seconds a problem is not known" in ran.err


def test_a_budget_of_money_that_nobody_counts_is_refused(qpdsl: Run, program: Path, rows: Path, tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text('{"other": {"input": 1, "output": 2}}')
    server = ("--model", "llm=openai:http://127.0.0.1:9/v1#m")
    for command, given in (("run", PROBLEM), ("eval", ("--input", rows))):
        ran = qpdsl(command, program, *given, "--budget", "cost=1")
        assert ran.code == 2 and "counts what servers take, and no model here is on one" in ran.err
        ran = qpdsl(command, program, *given, "--budget", "cost=1", *server)
        assert ran.code == 2 and "a budget of `cost` needs `--prices`" in ran.err
        ran = qpdsl(command, program, *given, "--budget", "cost=1", *server, "--prices", tmp_path / "prices.json")
        assert ran.code == 4 and "the price table has no price for" in ran.err
