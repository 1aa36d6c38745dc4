"""How many requests a server gets at once."""

from __future__ import annotations

from collections.abc import Callable

from qpdsl.executor.remote.concurrency_limit import ConcurrencyLimit


def rounds(limiter: ConcurrencyLimit, seconds_a_token: Callable[[int], float], count: int) -> list[int]:
    """The limits after each of `count` rounds at a server that takes so long for a token at so many requests."""
    limits = []
    for _ in range(count):
        limit, answered = limiter.limit, 0
        while limiter.limit == limit and answered < max(8, limit):
            epochs = [limiter.enter() for _ in range(limit)]
            assert not limiter.open
            for epoch in epochs:
                limiter.leave(epoch, 10 * seconds_a_token(limit), 10)
            answered += limit
        limits.append(limiter.limit)
    return limits


def test_a_server_that_batches_gets_as_many_as_it_may() -> None:
    assert rounds(ConcurrencyLimit(), lambda at_once: 0.02 + 0.0001 * at_once, 8)[-1] == 256


def test_no_more_than_the_server_works_at_side_by_side() -> None:
    """Sixteen slots: with more requests each waits longer, and no token comes sooner."""
    limits = rounds(ConcurrencyLimit(), lambda at_once: 0.02 * max(1.0, at_once / 16), 60)
    assert all(8 <= limit <= 40 for limit in limits)
    assert sum(limits[20:]) / 40 < 24


def test_one_at_a_time_stays_few() -> None:
    assert max(rounds(ConcurrencyLimit(), lambda at_once: 0.02 * at_once, 40)[1:]) <= 16


def test_too_many_requests_halve_the_limit_once() -> None:
    limiter = ConcurrencyLimit(first=64)
    epochs = [limiter.enter() for _ in range(64)]
    for epoch in epochs:
        limiter.overloaded(epoch)
        limiter.leave(epoch)
    assert limiter.limit == 32
    for _ in range(10):
        epoch = limiter.enter()
        limiter.overloaded(epoch)
        limiter.leave(epoch)
    assert limiter.limit == 1
    assert rounds(limiter, lambda at_once: 0.02, 30)[-1] > 32


def test_a_limit_that_nobody_reaches_does_not_rise() -> None:
    limiter = ConcurrencyLimit()
    for _ in range(100):
        limiter.leave(limiter.enter(), 0.1, 10)
    assert limiter.limit == 8


def test_a_server_that_is_away_is_asked_by_one_request() -> None:
    limiter = ConcurrencyLimit()
    limiter.lost()
    assert limiter.open
    epoch = limiter.enter()
    assert not limiter.open
    limiter.leave(epoch)
    limiter.found()
    assert [limiter.enter() for _ in range(8)] and not limiter.open


def test_a_server_that_others_load_gets_fewer() -> None:
    limiter = ConcurrencyLimit(most=32)
    assert rounds(limiter, lambda at_once: 0.02, 8)[-1] == 32
    assert min(rounds(limiter, lambda at_once: 0.2, 1)) < 32
