"""Lets requests in: so many run at once, so many wait, by their priority; and none while the server drains."""

from __future__ import annotations

import asyncio
import heapq
import math
from itertools import count

from qpdsl.executor.requests.request import Owner
from qpdsl.serve.refusal import Refusal

# Bounds of the seconds in `Retry-After`.
_SOONEST, _LATEST = 1, 120
# How much the latest request counts in the average time of a request.
_WEIGHT = 0.1


class AdmissionControl:
    """`most_running` requests run at once and `most_waiting` wait; the next one is refused with 429.

    Those that wait go by their urgency, then by their deadline, then in the order in which they came.
    """

    def __init__(self, most_running: int, most_waiting: int) -> None:
        self.most_running = most_running
        self.most_waiting = most_waiting
        self.running = 0
        self.draining = False
        self._waiting: list[tuple[int, float, int, asyncio.Future[None]]] = []
        self._arrivals = count()
        self._seconds = 1.0
        self._empty: asyncio.Event = asyncio.Event()

    @property
    def waiting(self) -> int:
        return sum(not entry[-1].done() for entry in self._waiting)

    async def enter(self, owner: Owner) -> None:
        """Takes one of the places, which `leave` gives back. Raises Refusal where there is none, nor room to wait."""
        if self.draining:
            raise _ending()
        if self.running < self.most_running:
            self.running += 1
        else:
            await self._wait(owner)

    def leave(self, seconds: float) -> None:
        """Gives a place back that was held for so long: to who waits next."""
        self._seconds += _WEIGHT * (seconds - self._seconds)
        self._pass_on()

    def turn_away(self) -> None:
        """Lets nobody in any more, those that wait included."""
        self.draining = True
        for *_, place in self._waiting:
            if not place.done():
                place.set_exception(_ending())
        self._waiting.clear()
        self._tell()

    async def drained(self) -> None:
        """Lets nobody in any more, and waits until all that run or wait are done."""
        self.draining = True
        self._tell()
        await self._empty.wait()

    async def _wait(self, owner: Owner) -> None:
        if self.waiting >= self.most_waiting:
            message = f"{self.running} requests run and {self.waiting} wait; the server takes no more now"
            raise Refusal(message, status=429, code="queue_full", retry_after=self._retry_after())
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        deadline = math.inf if owner.deadline is None else owner.deadline
        heapq.heappush(self._waiting, (-owner.urgency, deadline, next(self._arrivals), place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                # It was let in just now.
                self._pass_on()
            else:
                place.cancel()
                self._tell()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            *_, place = heapq.heappop(self._waiting)
            if not place.done():
                place.set_result(None)
                return
        self.running -= 1
        self._tell()

    def _tell(self) -> None:
        if self.draining and self.running == 0 and self.waiting == 0:
            self._empty.set()

    def _retry_after(self) -> int:
        """In how many seconds half of those that wait should be in."""
        seconds = self._seconds * (1 + self.waiting / 2) / self.most_running
        return min(max(math.ceil(seconds), _SOONEST), _LATEST)


def _ending() -> Refusal:
    return Refusal("the server is about to end", status=503, code="draining", retry_after=_SOONEST)
