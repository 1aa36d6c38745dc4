"""From saved runs to a policy: which runs count, what is told of it, and what happens where there are none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from qpdsl.budgets.policy_for import MIN_PROBLEMS, policy_for
from qpdsl.errors import UsageError
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.plan.budget_policy import BudgetPolicy, doubt, policy_lines
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RowRecord, RunRecord
from tests.qpdsl.budgets.made_up import ways

WAYS = ways("cheap", "dear")
# What a run of each way is known by.
CHEAP = {"program": "p1", "arguments": "a", "model `llm`": "m", "seed": "0", "device": "cpu", "plan": "optimized"}
DEAR = {**CHEAP, "program": "p2"}
BOTH = (CHEAP, DEAR)


def budget(unit: str, amount: float | None, accuracy: float | None = None) -> ast.Budget:
    return ast.Budget(unit, amount, accuracy, span=Span(0, 0))


def keep(
    folder: RunFolder,
    fingerprint: Mapping[str, str],
    *,
    dear: bool,
    rows: int = 60,
    failed: bool = False,
    **changed: object,
) -> None:
    """A run in which every other problem is hard: the cheap way (10 tokens) has these wrong, and is unsure of them.

    `failed`: each of its hard rows broke off.
    """
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
                correct=None if failed and not easy else easy or dear,
                error="it broke off" if failed and not easy else None,
                support=1.0 if dear else 0.9 if easy else 0.1,
            )
            run.add(RowRecord(number=number, key=f"{dear} {number}", outcome=outcome, asked=f"What is {number}?"))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs")


def test_the_policy_and_what_is_expected_of_it(folder: RunFolder) -> None:
    keep(folder, CHEAP, dear=False)
    keep(folder, DEAR, dear=True)
    policy = policy_for(WAYS, BOTH, budget=budget("tokens", 70), folder=folder)
    assert policy.first == 0 and policy.turns[0].after(0.9) is None and policy.turns[0].after(0.1) == 1
    assert policy.expected == 1.0 and policy.spends == pytest.approx(60.0)
    assert policy.between is not None and policy.between == pytest.approx((0.94, 1.0), abs=0.01)
    assert policy.learned_from == "60 problems of `puzzles`, each run by 2 strategies"


def test_a_share_of_right_answers_for_the_least(folder: RunFolder) -> None:
    """Half of 200 problems are hard: their test takes both ways; for 30% the cheap way is enough."""
    keep(folder, CHEAP, dear=False, rows=200)
    keep(folder, DEAR, dear=True, rows=200)
    found = {
        accuracy: policy_for(WAYS, BOTH, budget=budget("tokens", None, accuracy), folder=folder)
        for accuracy in (0.3, 0.9, 0.999)
    }
    assert (found[0.3].turns, found[0.3].first, found[0.3].spends) == ({}, 0, 10.0)
    assert found[0.9].turns[0].after(0.1) == 1 and found[0.9].expected == 1.0
    assert all(policy.is_for(budget("tokens", None, accuracy)) for accuracy, policy in found.items())
    promise = found[0.9].promise
    assert promise is not None and promise.kept and promise.problems + promise.learned == 200
    # All of about 100 are right, which shows no such share.
    assert (found[0.999].promise.kept, found[0.999].promise.needed) == (False, None)
    lines = "\n".join(policy_lines(found[0.9]))
    assert "promised: 90% right or more, with probability 90% (δ = 0.1):" in lines and "not promised:" in lines
    assert doubt(found[0.9]) is None
    assert "not promised: 99.9% right: " in doubt(found[0.999]) and "the most expensive strategy is run" in doubt(
        found[0.999]
    )


def test_a_share_is_given_up_where_it_takes_more_than_the_limit_or_is_not_shown(folder: RunFolder) -> None:
    keep(folder, CHEAP, dear=False, rows=200)
    keep(folder, DEAR, dear=True, rows=200)
    dear, unsure, kept = (
        policy_for(WAYS, BOTH, budget=budget("tokens", amount, accuracy), folder=folder)
        for amount, accuracy in ((20, 0.9), (20, 0.999), (90, 0.9))
    )
    assert dear.first == unsure.first == 0 and not dear.turns and dear.expected == 0.5
    assert doubt(dear).startswith("warning: given up: 90% right takes 59.54 tokens a problem (109 of 109 ")
    assert "it is given up for the limit" in doubt(unsure)
    assert kept.promise.kept and kept.turns and doubt(kept) is None
    with pytest.raises(UsageError, match="a budget of 9 tokens is too little"):
        policy_for(WAYS, BOTH, budget=budget("tokens", 9, 0.999), folder=folder)


def test_without_enough_to_test_on_the_most_expensive_strategy_is_run_and_nothing_is_promised(
    folder: RunFolder,
) -> None:
    aimed = budget("tokens", None, 0.9)
    assert policy_for(WAYS, BOTH, budget=aimed, folder=folder).first == 1
    keep(folder, CHEAP, dear=False, rows=2 * MIN_PROBLEMS - 1)
    keep(folder, DEAR, dear=True, rows=2 * MIN_PROBLEMS - 1)
    policy = policy_for(WAYS, BOTH, budget=aimed, folder=folder)
    assert (policy.first, policy.expected, policy.promise.kept) == (1, None, False)
    assert doubt(policy) == (
        "warning: not promised: 90% right: no saved rows are left to test it on; the most expensive strategy is run"
    )
    assert BudgetPolicy.from_json(json.loads(json.dumps(policy.to_json()))) == policy


def test_a_row_that_failed_is_wrong(folder: RunFolder) -> None:
    keep(folder, CHEAP, dear=False)
    keep(folder, DEAR, dear=True, failed=True)
    assert policy_for(WAYS, BOTH, budget=budget("tokens", 1000), folder=folder).expected == 0.5


def test_seconds_are_those_of_the_engine(folder: RunFolder) -> None:
    keep(folder, CHEAP, dear=False)
    keep(folder, DEAR, dear=True)
    policy = policy_for(WAYS, BOTH, budget=budget("seconds", 2.4), folder=folder)
    assert policy.expected == 1.0 and policy.spends <= 2.4


@pytest.mark.parametrize("part", ["program", "arguments", "model `llm`"])
def test_runs_of_another_program_or_model_tell_nothing(folder: RunFolder, part: str) -> None:
    keep(folder, {**CHEAP, part: "other"}, dear=False)
    keep(folder, {**DEAR, part: "other"}, dear=True)
    policy = policy_for(WAYS, BOTH, budget=budget("tokens", 70), folder=folder)
    assert policy.expected is None and not policy.turns
    assert policy.learned_from.startswith("nothing was learned yet")


def test_another_device_tells_of_tokens_but_not_of_seconds(folder: RunFolder) -> None:
    keep(folder, {**CHEAP, "device": "cuda"}, dear=False)
    keep(folder, {**DEAR, "device": "cuda"}, dear=True)
    assert policy_for(WAYS, BOTH, budget=budget("tokens", 70), folder=folder).expected == 1.0
    assert policy_for(WAYS, BOTH, budget=budget("seconds", 2.4), folder=folder).expected is None


def test_seeds_count_as_one_problem_and_the_newer_of_two_equal_rows_counts(folder: RunFolder) -> None:
    for seed in ("0", "1"):
        keep(folder, {**CHEAP, "seed": seed}, dear=False)
        keep(folder, {**DEAR, "seed": seed}, dear=True)
    keep(folder, {**CHEAP, "version": "an older build"}, dear=False, started=5.0)
    policy = policy_for(WAYS, BOTH, budget=budget("tokens", 70), folder=folder)
    assert policy.learned_from.startswith("60 problems")


def test_a_way_that_was_hardly_run_is_left_out(folder: RunFolder) -> None:
    keep(folder, CHEAP, dear=False)
    keep(folder, DEAR, dear=True, rows=20)
    policy = policy_for(WAYS, BOTH, budget=budget("tokens", 1000), folder=folder)
    assert [way.name for way in policy.ways] == ["cheap"]
    assert policy.expected == 0.5


def test_few_problems_are_not_learned_from_but_tell_what_fits(folder: RunFolder) -> None:
    keep(folder, CHEAP, dear=False, rows=MIN_PROBLEMS - 1)
    keep(folder, DEAR, dear=True, rows=MIN_PROBLEMS - 1)
    policy = policy_for(WAYS, BOTH, budget=budget("tokens", 70), folder=folder)
    assert (policy.first, policy.expected, policy.spends) == (0, None, 10.0)
    assert policy_for(WAYS, BOTH, budget=budget("tokens", 100), folder=folder).first == 1


def test_where_nothing_is_kept_estimates_say_what_fits(folder: RunFolder) -> None:
    policy = policy_for(WAYS, BOTH, budget=budget("tokens", 200), folder=folder, sizes=[20.0, 150.0])
    assert (policy.first, policy.expected, policy.spends) == (1, None, None)
    assert "estimated at 150 tokens" in policy.learned_from
    assert policy_for(WAYS, BOTH, budget=budget("tokens", 200), folder=folder).first == 0


def test_estimates_go_by_what_was_measured_of_others(folder: RunFolder) -> None:
    """By rule of thumb the cheap way takes 512 tokens, as the dear one takes 8,192; it was measured at 100."""
    keep(folder, DEAR, dear=True, rows=5)
    for amount in (20, 2):
        policy = policy_for(WAYS, BOTH, budget=budget("tokens", amount), folder=folder, sizes=[512.0, 8192.0])
        assert policy.first == 0
        assert "estimated at 6.25 tokens a problem, by what others took in run" in policy.learned_from
    policy = policy_for(WAYS, BOTH, budget=budget("seconds", 1.0), folder=folder, sizes=[512.0, 8192.0])
    assert policy.first == 0 and "estimated at 0.125 seconds a problem" in policy.learned_from


def test_a_share_that_nothing_shows_takes_the_dearest_whatever_was_measured(folder: RunFolder) -> None:
    aimed = budget("tokens", None, 0.9)
    before = policy_for(WAYS, BOTH, budget=aimed, folder=folder, sizes=[512.0, 8192.0])
    keep(folder, DEAR, dear=True, rows=5)
    after = policy_for(WAYS, BOTH, budget=aimed, folder=folder, sizes=[512.0, 8192.0])
    assert before.first == after.first == 1 and before.learned_from == after.learned_from


def test_a_budget_that_no_way_keeps_is_refused(folder: RunFolder) -> None:
    keep(folder, CHEAP, dear=False)
    keep(folder, DEAR, dear=True)
    with pytest.raises(UsageError, match="budget of 9 tokens is too little: the cheapest strategy, `cheap`, takes 10"):
        policy_for(WAYS, BOTH, budget=budget("tokens", 9), folder=folder)
