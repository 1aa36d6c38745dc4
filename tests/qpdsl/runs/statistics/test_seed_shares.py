"""Shares over seeds: one observation a problem, and the same figures for a sweep and for a comparison."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.runs.evaluation import CellFigures
from qpdsl.runs.statistics import paired_test, paired_values, share_interval, share_right, shares_compared, wilson
from tests.support.saved_runs import outcome


@pytest.mark.parametrize(
    ("verdicts", "share"),
    [([True], 1.0), ([True, False], 0.5), ([False, False], 0.0), ([True, None], None), ([None], None)],
)
def test_a_problem_is_one_observation(verdicts: list[bool | None], share: float | None) -> None:
    assert share_right(verdicts) == share
    runs = [{0: outcome(0, correct=verdict)} for verdict in verdicts]
    assert CellFigures.of(runs).shares == ({} if share is None else {0: share})


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=30))
def test_an_interval_is_never_certain_of_a_share_between(shares: list[float]) -> None:
    interval = share_interval(shares)
    assert interval.low <= sum(shares) / len(shares) <= interval.high
    if len(set(shares)) == 1:
        assert interval.low < interval.high
    if 0.5 not in shares:
        assert interval == wilson(round(sum(shares)), len(shares))


@pytest.mark.parametrize(("problems", "errors"), [(2, 12.7062), (5, 2.77645), (6, 2.57058), (30, 2.04523)])
def test_few_problems_have_the_interval_of_student(problems: int, errors: float) -> None:
    shares = [0.4] * (problems - 1) + [0.5]
    middle, error = sum(shares) / problems, 0.1 / problems
    interval = share_interval(shares)
    assert interval.high == pytest.approx(min(middle + errors * error, 1.0), abs=1e-5)
    assert interval.low == pytest.approx(max(middle - errors * error, 0.0), abs=1e-5)


def test_one_seed_is_compared_by_its_verdicts_and_several_by_their_shares() -> None:
    first, second = [1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]
    verdicts = [[share == 1 for share in side] for side in (first, second)]
    assert shares_compared(first, second, one_seed=True) == paired_test(*verdicts)
    assert shares_compared(first, second, one_seed=False) == paired_values(first, second)
