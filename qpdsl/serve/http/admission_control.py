"""Lets requests in: so many run at once and so many wait; and ends them where their time is over."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator

from qpdsl.executor.requests.request import Client
from qpdsl.serve.completion_request import Refusal
from qpdsl.serve.http.fair_queue import FairQueue, QueueFull

# Bounds of the seconds in `Retry-After`.
_SOONEST, _LATEST = 1, 120
# How much the latest request counts in the average time of a request.
_WEIGHT = 0.1
# All streams together are written to so often at most: a thousand times a second, but ten times each.
_SECONDS_A_SEND = 0.001
_LONGEST_PAUSE = 0.1


class AdmissionControl:
    """`max_running` requests run at once and `max_waiting` wait; the next one is refused with 429.

    Keys share the places evenly (see `FairQueue`), and none has more than `max_per_key`; requests of one key go by
    their urgency, then by their deadline, then in the order in which they came. Each may run for `seconds`, None for as
    long as it takes.
    """

    def __init__(
        self, max_running: int, max_waiting: int, seconds: float | None = None, max_per_key: int | None = None
    ) -> None:
        self._queue = FairQueue(max_running, max_waiting, max_per_key)
        self._limit = seconds
        self._timers: set[asyncio.Timeout] = set()
        self._given_up: Refusal | None = None
        self.draining = False
        self._seconds = 1.0
        self._empty: asyncio.Event = asyncio.Event()

    @property
    def running(self) -> int:
        return self._queue.held

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    async def enter(self, client: Client, key: str = "") -> None:
        """Takes one of the places, which `leave` gives back. Raises Refusal where there is none, nor room to wait."""
        if self.draining:
            raise self.ended()
        try:
            await self._queue.enter(key, client.urgency, client.deadline)
        except QueueFull:
            message = f"{self.running} requests run and {self.waiting} wait; the server takes no more now"
            raise Refusal(message, status=429, code="queue_full", retry_after=self._retry_after()) from None
        except asyncio.CancelledError:
            self._check_empty()
            raise

    def leave(self, seconds: float, key: str = "") -> None:
        """Gives a place back that was held for so long: to who is next."""
        self._seconds += _WEIGHT * (seconds - self._seconds)
        self._queue.leave(key)
        self._check_empty()

    @contextlib.asynccontextmanager
    async def timed(self) -> AsyncIterator[None]:
        """Ends the block by TimeoutError after the time that a request may take, or where all are given up."""
        async with asyncio.timeout(0 if self._given_up else self._limit) as timer:
            self._timers.add(timer)
            try:
                yield
            finally:
                self._timers.discard(timer)

    def ended(self) -> Refusal:
        """Why nobody is let in any more."""
        return self._given_up or Refusal(
            "the server is shutting down", status=503, code="draining", retry_after=_SOONEST
        )

    def late(self) -> Refusal:
        """Why a request was ended before it had its answer."""
        if self._given_up is not None:
            return self._given_up
        message = f"the request took more than {self._limit:g} s, the server's limit"
        return Refusal(message, status=504, code="timeout")

    def pause(self) -> float:
        """How long a stream gathers deltas: the more requests run, the more each of them sends at once."""
        return pause_of(self.running)

    def give_up(self, why: Refusal | None = None) -> None:
        """Lets nobody in any more, and ends all requests that run or wait, each with an answer that says why."""
        self.draining = True
        self._given_up = why or Refusal("the server has shut down", status=503, code="draining", retry_after=_SOONEST)
        self._queue.fail(self._given_up)
        now = asyncio.get_running_loop().time()
        for timer in self._timers:
            timer.reschedule(now)
        self._check_empty()

    async def drained(self) -> None:
        """Lets nobody in any more, and waits until all that run or wait are done."""
        self.draining = True
        self._check_empty()
        await self._empty.wait()

    def _check_empty(self) -> None:
        if self.draining and self.running == 0 and self.waiting == 0:
            self._empty.set()

    def _retry_after(self) -> int:
        """In how many seconds half of those that wait should be in."""
        seconds = self._seconds * (1 + self.waiting / 2) / self._queue.places
        return min(max(math.ceil(seconds), _SOONEST), _LATEST)


def pause_of(streams: int) -> float:
    """How long each of so many streams gathers what it sends at once, in seconds."""
    return min(streams * _SECONDS_A_SEND, _LONGEST_PAUSE)
