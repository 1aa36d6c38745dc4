"""Axes: every value lies on them, and ticks are round, few and in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qpdsl.runs.plots import linear_scale, log_scale

COSTS = st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=20)
GAINS = st.lists(st.floats(0, 1), min_size=1, max_size=20)
MOST = st.integers(2, 12)


@given(COSTS, MOST)
def test_logarithmic(values: list[float], most: int) -> None:
    scale = log_scale(values)
    assert all(0 <= scale.at(value) <= 1 for value in values)
    ticks = scale.ticks(most)
    assert 2 <= len(ticks) <= most and ticks == sorted(set(ticks))
    assert all(-1e-9 <= scale.at(tick) <= 1 + 1e-9 for tick in ticks)


@given(GAINS, MOST)
def test_linear_within_bounds(values: list[float], most: int) -> None:
    scale = linear_scale(values, least=0.0, most=1.0)
    assert 0 <= scale.low < scale.high <= 1
    assert all(0 <= scale.at(value) <= 1 for value in values)
    ticks = scale.ticks(most)
    assert 2 <= len(ticks) <= most and ticks == sorted(set(ticks))
    assert all(scale.low <= tick <= scale.high for tick in ticks)


def test_ticks_are_round() -> None:
    assert log_scale([100, 30_000]).ticks(9) == [100, 200, 500, 1000, 2000, 5000, 10_000, 20_000]
    assert log_scale([100, 30_000]).ticks(4) == [100, 1000, 10_000]
    assert linear_scale([0.42, 0.71]).ticks(8) == [0.45, 0.5, 0.55, 0.6, 0.65, 0.7]
    # Within less than a decade there are few round numbers of the kind 1, 2, 5.
    assert log_scale([210, 390]).ticks(6) == [200, 250, 300, 350, 400]


def test_one_value_has_room_on_both_sides() -> None:
    assert 0 < linear_scale([0.5]).at(0.5) < 1
    assert 0 < log_scale([700]).at(700) < 1
    assert linear_scale([]).ticks(3)
