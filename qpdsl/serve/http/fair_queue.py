"""Places that keys share evenly: who waits, who goes next, and who is turned away where too many wait."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

# Of so many that are let in, at least one is the oldest.
_PATIENCE = 33


class QueueFull(Exception):
    """Too many wait."""


@dataclass(order=True, slots=True)
class _Waiting:
    """One that waits: by its urgency, then by its deadline, then in the order in which they came."""

    urgency: float
    deadline: float
    arrival: int
    place: asyncio.Future[None] = field(compare=False)


class FairQueue:
    """`places` are held at once, and `max_waiting` wait for one; each key holds up to `max_per_key`, None for any.

    A free place goes to the key that holds fewest, of those to the one whose last turn is longest ago, and there to
    the most urgent. But every so often the oldest of all has its turn, so nobody waits for ever. Where too many wait,
    the last of the key of which most do is turned away (longest queue drop: Suter et al., 1998).
    """

    def __init__(self, places: int, max_waiting: int, max_per_key: int | None = None) -> None:
        self.places = places
        self.max_waiting = max_waiting
        self.held = 0
        self._most = places if max_per_key is None else max_per_key
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, list[_Waiting]] = {}
        self._turns: dict[str, int] = {}
        self._let_in = 0
        self._turn = count()
        self._arrivals = count()

    @property
    def waiting(self) -> int:
        return sum(self._counts().values())

    async def enter(self, key: str = "", urgency: float = 0, deadline: float | None = None) -> None:
        """Takes one of the places, which `leave` gives back. Raises QueueFull, also later for one that waits."""
        if self.held < self.places and self._held[key] < self._most:
            self._take(key)
        else:
            await self._wait(key, -urgency, math.inf if deadline is None else deadline)

    def leave(self, key: str = "") -> None:
        """Gives a place back: to who is next."""
        self.held -= 1
        self._held[key] -= 1
        self._forget(key)
        self._pass_on()

    def fail(self, error: Exception) -> None:
        """Turns all away that wait."""
        for queue in self._waiting.values():
            for one in _alive(queue):
                one.place.set_exception(error)
        self._waiting.clear()

    async def _wait(self, key: str, urgency: float, deadline: float) -> None:
        if (counts := self._counts()).total() >= self.max_waiting:
            longest = max(counts, key=counts.__getitem__, default=key)
            if counts[longest] <= counts[key] + 1:
                raise QueueFull
            max(_alive(self._waiting[longest])).place.set_exception(QueueFull())
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        one = _Waiting(urgency, deadline, next(self._arrivals), place)
        self._waiting.setdefault(key, []).append(one)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                # It was let in just now.
                self.leave(key)
            else:
                place.cancel()
            raise

    def _pass_on(self) -> None:
        while self.held < self.places:
            able = [key for key, waiting in self._counts().items() if waiting and self._held[key] < self._most]
            if not able:
                return
            self._let_in += 1
            if self._let_in % _PATIENCE:
                key = min(able, key=lambda key: (self._held[key], self._turns.get(key, -1)))
                one = min(_alive(self._waiting[key]))
            else:
                oldest = {key: min(_alive(self._waiting[key]), key=lambda one: one.arrival) for key in able}
                key = min(oldest, key=lambda key: oldest[key].arrival)
                one = oldest[key]
            self._take(key)
            one.place.set_result(None)

    def _take(self, key: str) -> None:
        self.held += 1
        self._held[key] += 1
        self._turns[key] = next(self._turn)

    def _counts(self) -> Counter[str]:
        """How many of each key wait. Those that went away are dropped."""
        for key, queue in list(self._waiting.items()):
            queue[:] = _alive(queue)
            if not queue:
                del self._waiting[key]
                self._forget(key)
        return Counter({key: len(queue) for key, queue in self._waiting.items()})

    def _forget(self, key: str) -> None:
        """Keeps nothing of a key that holds no place and waits for none."""
        if not self._held[key]:
            del self._held[key]
            if key not in self._waiting:
                self._turns.pop(key, None)


def _alive(queue: list[_Waiting]) -> list[_Waiting]:
    return [one for one in queue if not one.place.done()]
