"""When a request goes again."""

from __future__ import annotations

import random

import pytest

from qpdsl.executor.remote.server.failures import Retries, Unreachable
from qpdsl.executor.requests.errors import EngineError, ServerGone


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_waits_grow_up_to_a_bound_and_are_spread() -> None:
    retries = Retries(clock=Clock(), chance=random.Random(1))
    for attempt, bound in ((1, 0.5), (2, 1.0), (4, 4.0), (7, 30.0), (50, 30.0)):
        waits = [retries.wait(Unreachable("no"), attempt) for _ in range(300)]
        assert 0 <= min(waits) < 0.1 * bound and 0.9 * bound < max(waits) <= bound


def test_the_server_says_when_to_come_again() -> None:
    retries = Retries(clock=Clock())
    waits = [retries.wait(Unreachable("no", retry_after=7.0, status=429), 1) for _ in range(50)]
    assert min(waits) >= 7.0 and max(waits) <= 7.5


def test_a_server_that_is_gone_is_given_up() -> None:
    clock = Clock()
    retries = Retries(patience=60.0, clock=clock)
    retries.wait(Unreachable("no"), 1)
    clock.now = 59.0
    retries.wait(Unreachable("no"), 9)
    retries.answered()
    clock.now = 70.0
    retries.wait(Unreachable("no"), 10)
    clock.now = 131.0
    with pytest.raises(ServerGone, match="no response for 61 s"):
        retries.wait(Unreachable("no"), 11)


def test_a_server_that_takes_requests_and_says_nothing_is_silent_since_then() -> None:
    clock = Clock()
    retries = Retries(patience=60.0, clock=clock)
    clock.now = 20.0
    retries.answered()
    clock.now = 60.0
    retries.wait(Unreachable("no", stalled=True), 1, 1, 0.0)
    clock.now = 90.0
    with pytest.raises(ServerGone, match="no response for 70 s"):
        retries.wait(Unreachable("no", stalled=True), 2, 1, 60.5)


def test_a_day_is_too_long_to_wait() -> None:
    with pytest.raises(ServerGone, match="asks for a retry after 86400 s"):
        Retries().wait(Unreachable("no", retry_after=86400.0, status=429), 1)


def test_a_request_that_alone_fails_is_at_fault() -> None:
    retries = Retries(clock=Clock())
    for attempt in range(1, 20):
        retries.wait(Unreachable("500", status=500), attempt, min(attempt, 7))
    with pytest.raises(EngineError, match="failed 8 times while other requests"):
        retries.wait(Unreachable("500", status=500), 20, 8)


def test_the_last_try_comes_when_the_patience_ends() -> None:
    clock = Clock()
    retries = Retries(patience=8.0, clock=clock)
    for attempt in range(1, 30):
        try:
            clock.now += retries.wait(Unreachable("no"), attempt)
        except ServerGone:
            break
    assert clock.now == pytest.approx(8.0)
