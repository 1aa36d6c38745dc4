"""The simulation of a cluster: a busy cluster is near its bound, a slow driver shows, a loss costs no row."""

from __future__ import annotations

import math

from benchmarks.cluster.driver_costs import DriverCosts
from benchmarks.cluster.simulation import Result, Simulation


def simulated(*, messages: float = 0.0, commit: float = 0.0, commits: float = 0, lost: int = 0) -> Result:
    costs = DriverCosts(messages, commit, 0.0, 0.0, 0.0)
    return Simulation(2_000, 20, 2, [1.0, 2.0, 3.0], costs, commits, lost).run()


def test_replicas_are_busy_nearly_all_of_the_time() -> None:
    result = simulated()
    assert 1.0 <= result.seconds / result.least_seconds < 1.1
    assert result.slots_busy > 0.9
    assert result.kept_rows <= 20 * (16 + 2 + 2)


def test_a_driver_that_takes_long_is_what_the_run_waits_for() -> None:
    """Twenty replicas with two rows of two seconds each end twenty rows a second; this driver takes ten."""
    result = simulated(messages=0.1)
    assert result.driver_busy > 0.95
    assert result.seconds > 1.9 * result.least_seconds


def test_rows_that_end_during_a_commit_share_the_next() -> None:
    """Commits of a tenth of a second: ten rows a second one by one, and all twenty where they are kept together."""
    alone, together = (simulated(commit=0.1, commits=most) for most in (1, math.inf))
    assert alone.together == 1.0 and alone.seconds > 1.9 * alone.least_seconds
    assert together.together > 1.5 and together.seconds < 1.1 * together.least_seconds


def test_rows_of_lost_replicas_run_again() -> None:
    """The simulation itself asserts that every row is done once."""
    result = simulated(lost=5)
    assert result.lost == 5
    assert 0 < result.again <= 5 * 4
    assert result.seconds > simulated().seconds
