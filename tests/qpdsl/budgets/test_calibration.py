"""A share of right answers that is promised: what a test needs, what it may look at, and how often it is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qpdsl.budgets.calibration import calibrated, halves, last_passing, once
from qpdsl.budgets.observations import Observations, by_spend
from qpdsl.budgets.policy_learning import Cascade, cheaper_and_cheaper, replayed
from qpdsl.planner.plan.budget_policy import Turn
from qpdsl.runs.statistics import least_successes
from tests.qpdsl.budgets.made_up import easy_and_hard, random_problems, ways


@pytest.mark.parametrize(
    ("problems", "share", "right"),
    [
        (48, 0.8, 43),
        (100, 0.8, 86),
        (200, 0.8, 168),
        (500, 0.8, 412),
        (21, 0.9, None),
        (22, 0.9, 22),
        (48, 0.9, 47),
        (100, 0.9, 95),
        (200, 0.9, 186),
        (500, 0.9, 460),
    ],
)
def test_how_many_must_be_right(problems: int, share: float, right: int | None) -> None:
    assert least_successes(problems, share, 0.1) == right


def test_the_policies_go_from_the_most_right_to_the_cheapest() -> None:
    seen = random_problems(1, 100, 3)
    replays = [replayed(cascade, seen) for cascade in cheaper_and_cheaper(seen)]
    spends = [replay.spend.mean() for replay in replays]
    assert spends == sorted(spends, reverse=True) and len(spends) > 5
    assert replays[0].correct.mean() >= seen.correct.mean(axis=0).max()
    assert spends[-1] == seen.spend[:, 0].mean()


def test_strategies_of_which_the_first_takes_nothing_have_such_policies_too() -> None:
    seen = easy_and_hard()
    free = replace(seen, spend=seen.spend * np.array([0.0, 1.0]))
    assert list(cheaper_and_cheaper(free))[-1] == Cascade(0)
    assert list(cheaper_and_cheaper(replace(seen, spend=seen.spend * 0.0)))[-1] == Cascade(0)


def test_the_cheapest_that_passes_is_taken_though_a_cheaper_one_passes_by_chance_later() -> None:
    """Of 200 problems 168 are needed for 80%; the tests end with the first policy that has fewer."""
    seen = _strategies([200, 168, 167, 200])
    found = last_passing([Cascade(way) for way in range(4)], seen, 0.8, 0.1, 7)
    assert found.cascade == Cascade(1)
    promise = found.promise
    assert (promise.right, promise.problems, promise.needed, promise.learned) == (168, 200, 168, 7)
    assert promise.kept


def test_where_none_passes_the_first_is_run_and_nothing_is_promised() -> None:
    found = last_passing([Cascade(0), Cascade(1)], _strategies([150, 200]), 0.8, 0.1, 7)
    assert found.cascade == Cascade(0) and not found.promise.kept and not found.promise.certified
    assert found.promise.right == 150


def test_a_problem_is_learned_from_or_tested_whatever_others_there_are() -> None:
    seen = random_problems(1, 300)
    own, other = halves(seen)
    assert {*own.names}.isdisjoint(other.names) and len(own.names) + len(other.names) == 300
    assert 100 < len(own.names) < 200
    assert {*halves(random_problems(1, 200))[0].names} <= {*own.names}


def test_a_problem_counts_once_whatever_seeds_it_was_run_with() -> None:
    seen = easy_and_hard(10)
    twice = seen.rows(np.repeat(np.arange(10), 2))
    assert once(twice).problems == seen.problems


def test_the_labels_of_the_test_have_no_part_in_the_policies() -> None:
    seen = random_problems(3, 120, 2)
    tests = {*halves(seen)[1].names}
    flipped = np.array([name in tests for name in seen.problems])[:, None]
    others = replace(seen, correct=np.where(flipped, 1.0, seen.correct))
    found = calibrated(seen, 0.5, 0.1)
    assert found.promise.kept and found.cascade in [*cheaper_and_cheaper(halves(others)[0])]
    assert calibrated(others, 0.5, 0.1).cascade == Cascade(0)


def test_what_is_promised_holds_more_often_than_not_testing_does() -> None:
    """200 calibrations on 100 problems each, along the path of one threshold: 1 - δ = 90% hold, at the least."""
    path = [Cascade(0, {0: Turn((float(cut),), (1, None))}) for cut in np.linspace(1.01, 0, 41)]
    truth = _two_ways(np.random.default_rng(1), 100_000)
    accuracy = {cascade.turns[0].cuts: replayed(cascade, truth).correct.mean() for cascade in path}
    random = np.random.default_rng(2)
    missed = naive = promised = 0
    for _ in range(200):
        trial = _two_ways(random, 100)
        found = last_passing(path, trial, 0.8, 0.1, 0)
        promised += found.promise.kept
        missed += found.promise.kept and accuracy[found.cascade.turns[0].cuts] < 0.8
        looks_good = [cascade for cascade in path if replayed(cascade, trial).correct.mean() >= 0.8]
        naive += bool(looks_good) and accuracy[looks_good[-1].turns[0].cuts] < 0.8
    assert promised > 50
    assert missed <= 0.1 * 200 < naive


def _strategies(right: list[int], problems: int = 200) -> Observations:
    correct = np.column_stack([np.arange(problems) < count for count in right]).astype(np.float64)
    spend = np.tile(10.0 * np.arange(1, len(right) + 1), (problems, 1))
    names = [str(number) for number in range(problems)]
    return by_spend(ways(*(f"w{way}" for way in range(len(right)))), names, correct, spend, np.ones_like(spend))


def _two_ways(random: np.random.Generator, count: int) -> Observations:
    """A cheap way that is right and sure of easy problems, and a dear one."""
    easy = random.uniform(size=count)
    right = np.column_stack([random.uniform(size=count) < easy, random.uniform(size=count) < 0.6 + 0.5 * easy])
    spend = np.tile([1.0, 10.0], (count, 1))
    names = [f"{number:06d}" for number in range(count)]
    return by_spend(ways("cheap", "dear"), names, right.astype(np.float64), spend, np.column_stack([easy, easy]))
