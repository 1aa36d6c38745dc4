import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.runs.statistics import bootstrap_interval, wilson

# From Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I, method 3.
PUBLISHED = [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)]


@pytest.mark.parametrize(("correct", "total", "low", "high"), PUBLISHED)
def test_wilson_is_the_published_one(correct: int, total: int, low: float, high: float) -> None:
    interval = wilson(correct, total)
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


@given(st.integers(1, 2000), st.data())
def test_the_share_lies_in_it_and_the_other_side_mirrors_it(total: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, total))
    interval, mirrored = wilson(correct, total), wilson(total - correct, total)
    assert correct / total in interval
    assert math.isclose(interval.low, 1 - mirrored.high, abs_tol=1e-12)


def test_it_holds_its_confidence() -> None:
    random = np.random.default_rng(1)
    for share in (0.03, 0.5, 0.9):
        held = [share in wilson(int(correct), 100) for correct in random.binomial(100, share, 4000)]
        assert 0.93 <= np.mean(held) <= 0.98


@pytest.mark.parametrize(("correct", "total"), [(1, 0), (3, 2), (-1, 2)])
def test_what_is_no_share_is_refused(correct: int, total: int) -> None:
    with pytest.raises(ValueError, match="is no share"):
        wilson(correct, total)


def test_a_bootstrap_is_near_the_normal_interval_and_comes_again() -> None:
    values = np.random.default_rng(2).normal(10, 3, 400).tolist()
    interval = bootstrap_interval(values)
    mean, error = np.mean(values), np.std(values) / math.sqrt(len(values))
    assert interval.low == pytest.approx(mean - 1.96 * error, abs=0.15 * error)
    assert interval.high == pytest.approx(mean + 1.96 * error, abs=0.15 * error)
    assert bootstrap_interval(values) == interval


def test_equal_values_leave_no_doubt() -> None:
    interval = bootstrap_interval([4.0] * 7)
    assert (interval.low, interval.high) == (4.0, 4.0)
