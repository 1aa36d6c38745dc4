"""How many replicas there should be, by numbers and times alone."""

from __future__ import annotations

from qpdsl.cluster.fleet import Autoscaler, Load


def load(running: int = 1, loading: int = 0, idle: int = 0, waiting: int = 0, rate: float | None = 1.0) -> Load:
    return Load(running, loading, idle, waiting, rate, start_seconds=5.0)


def test_one_more_while_rows_wait_longer_than_it_loads() -> None:
    scaler = Autoscaler(1, 4)
    assert scaler.wanted(load(waiting=6), 0.0) == 2
    assert scaler.wanted(load(waiting=4), 0.0) == 1
    assert scaler.wanted(load(running=2, waiting=6), 0.0) == 2


def test_one_at_a_time_and_never_more_than_most() -> None:
    scaler = Autoscaler(1, 2)
    assert scaler.wanted(load(loading=1, waiting=1000), 0.0) == 2
    assert scaler.wanted(load(running=2, waiting=1000), 0.0) == 2


def test_one_fewer_once_one_was_idle_for_a_while() -> None:
    scaler = Autoscaler(1, 4, idle_seconds=5.0)
    assert scaler.wanted(load(running=3, idle=2), 0.0) == 3
    assert scaler.wanted(load(running=3, idle=2), 4.0) == 3
    assert scaler.wanted(load(running=3, idle=2), 5.0) == 2
    assert scaler.wanted(load(running=2, idle=1), 9.0) == 2
    assert scaler.wanted(load(running=2, idle=1), 10.0) == 1
    assert scaler.wanted(load(running=1, idle=1), 100.0) == 1


def test_work_in_between_starts_the_wait_again() -> None:
    scaler = Autoscaler(1, 4, idle_seconds=5.0)
    scaler.wanted(load(running=2, idle=1), 0.0)
    scaler.wanted(load(running=2, idle=0), 3.0)
    assert scaler.wanted(load(running=2, idle=1), 6.0) == 2
    assert scaler.wanted(load(running=2, idle=1), 11.0) == 1


def test_never_fewer_than_least() -> None:
    assert Autoscaler(2, 4).wanted(load(running=1), 0.0) == 2


def test_nothing_is_started_before_anything_is_known() -> None:
    unknown = Load(running=0, loading=1, idle=0, waiting=100, rate=None, start_seconds=None)
    assert Autoscaler(1, 4).wanted(unknown, 0.0) == 1
