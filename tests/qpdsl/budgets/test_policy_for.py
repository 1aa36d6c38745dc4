"""From saved runs to a policy: which runs count, what is told of it, and what happens where there are none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from qpdsl.budgets.policy_for import MIN_PROBLEMS, policy_for
from qpdsl.errors import UsageError
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RowRecord, RunRecord
from tests.qpdsl.budgets.made_up import ways

WAYS = ways("cheap", "dear")
# What a run of each way is known by.
CHEAP = {"program": "p1", "arguments": "a", "model `llm`": "m", "seed": "0", "device": "cpu", "plan": "optimized"}
DEAR = {**CHEAP, "program": "p2"}
BOTH = (CHEAP, DEAR)


def keep(folder: RunFolder, fingerprint: Mapping[str, str], *, dear: bool, rows: int = 60, **changed: object) -> None:
    """A run in which every other problem is hard: the cheap way (10 tokens) has these wrong, and is unsure of them."""
    seed = int(fingerprint["seed"])
    values = {
        "program": "made_up",
        "source": "",
        "parameters": {},
        "models": {},
        "seed": seed,
        "plan": "",
        "planned": "optimized",
        "fingerprint": fingerprint,
        "input": "puzzles",
        "input_digest": "d",
        "rows": rows,
        "grader": "equal 1",
        "started": float(seed),
        "machine": "",
    }
    with folder.create(RunRecord(**{**values, **changed})) as run:
        for number in range(rows):
            easy = number % 2 == 0
            outcome = Outcome(
                id=f"row-{number}",
                answer="1",
                score=None,
                tokens_in=5,
                tokens_out=100 if dear else 10,
                near_ties=0,
                seconds=9.0,
                engine_seconds=2.0 if dear else 1.0,
                correct=easy or dear,
                support=1.0 if dear else 0.9 if easy else 0.1,
            )
            run.add(RowRecord(number=number, key=f"{dear} {number}", outcome=outcome, asked=f"What is {number}?"))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs")


def test_the_policy_and_what_is_expected_of_it(folder: RunFolder) -> None:
    keep(folder, CHEAP, dear=False)
    keep(folder, DEAR, dear=True)
    policy = policy_for(WAYS, BOTH, unit="tokens", budget=70, folder=folder)
    assert policy.first == 0 and policy.turns[0].after(0.9) is None and policy.turns[0].after(0.1) == 1
    assert policy.expected == 1.0 and policy.spends == pytest.approx(60.0)
    assert policy.between is not None and policy.between == pytest.approx((0.94, 1.0), abs=0.01)
    assert policy.learned_from == "60 problems of `puzzles`, each run by 2 strategies"


def test_seconds_are_those_of_the_engine(folder: RunFolder) -> None:
    keep(folder, CHEAP, dear=False)
    keep(folder, DEAR, dear=True)
    policy = policy_for(WAYS, BOTH, unit="seconds", budget=2.4, folder=folder)
    assert policy.expected == 1.0 and policy.spends <= 2.4


@pytest.mark.parametrize("part", ["program", "arguments", "model `llm`"])
def test_runs_of_another_program_or_model_tell_nothing(folder: RunFolder, part: str) -> None:
    keep(folder, {**CHEAP, part: "other"}, dear=False)
    keep(folder, {**DEAR, part: "other"}, dear=True)
    policy = policy_for(WAYS, BOTH, unit="tokens", budget=70, folder=folder)
    assert policy.expected is None and not policy.turns
    assert policy.learned_from.startswith("nothing was learned yet")


def test_another_device_tells_of_tokens_but_not_of_seconds(folder: RunFolder) -> None:
    keep(folder, {**CHEAP, "device": "cuda"}, dear=False)
    keep(folder, {**DEAR, "device": "cuda"}, dear=True)
    assert policy_for(WAYS, BOTH, unit="tokens", budget=70, folder=folder).expected == 1.0
    assert policy_for(WAYS, BOTH, unit="seconds", budget=2.4, folder=folder).expected is None


def test_seeds_count_as_one_problem_and_the_newer_of_two_equal_rows_counts(folder: RunFolder) -> None:
    for seed in ("0", "1"):
        keep(folder, {**CHEAP, "seed": seed}, dear=False)
        keep(folder, {**DEAR, "seed": seed}, dear=True)
    keep(folder, {**CHEAP, "version": "an older build"}, dear=False, started=5.0)
    policy = policy_for(WAYS, BOTH, unit="tokens", budget=70, folder=folder)
    assert policy.learned_from.startswith("60 problems")


def test_a_way_that_was_hardly_run_is_left_out(folder: RunFolder) -> None:
    keep(folder, CHEAP, dear=False)
    keep(folder, DEAR, dear=True, rows=20)
    policy = policy_for(WAYS, BOTH, unit="tokens", budget=1000, folder=folder)
    assert [way.name for way in policy.ways] == ["cheap"]
    assert policy.expected == 0.5


def test_few_problems_are_not_learned_from_but_tell_what_fits(folder: RunFolder) -> None:
    keep(folder, CHEAP, dear=False, rows=MIN_PROBLEMS - 1)
    keep(folder, DEAR, dear=True, rows=MIN_PROBLEMS - 1)
    policy = policy_for(WAYS, BOTH, unit="tokens", budget=70, folder=folder)
    assert (policy.first, policy.expected, policy.spends) == (0, None, 10.0)
    assert policy_for(WAYS, BOTH, unit="tokens", budget=100, folder=folder).first == 1


def test_where_nothing_is_kept_estimates_say_what_fits(folder: RunFolder) -> None:
    policy = policy_for(WAYS, BOTH, unit="tokens", budget=200, folder=folder, estimates=[20.0, 150.0])
    assert (policy.first, policy.expected, policy.spends) == (1, None, None)
    assert "estimated at 150 tokens" in policy.learned_from
    assert policy_for(WAYS, BOTH, unit="tokens", budget=200, folder=folder).first == 0


def test_a_budget_that_no_way_keeps_is_refused(folder: RunFolder) -> None:
    keep(folder, CHEAP, dear=False)
    keep(folder, DEAR, dear=True)
    with pytest.raises(UsageError, match="budget of 9 tokens is too little: the cheapest strategy, `cheap`, takes 10"):
        policy_for(WAYS, BOTH, unit="tokens", budget=9, folder=folder)
