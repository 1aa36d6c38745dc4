"""The order in which waiting requests go to a server.

Needed work goes before run-ahead work, the urgent before the rest, an early deadline before a late one. Among equals
the owner goes first that has the fewest requests at the server, so that no row waits for another's hundreds. Among
those again, a request goes first whose prompt begins as the last one's did, while the server's prefix cache has it
(SGLang, section 3, sorts by that alone); one that was passed over too often is taken as it came.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from qpdsl.executor.requests.request import Owner, Priority

# Prefixes are compared at these lengths, in tokens.
_CUTS = (16, 64, 256, 1024, 4096)
# After so many others went, a request counts as old.
_OLD = 64

Prefix = tuple[int, ...]


def prefix_of(tokens: Sequence[int]) -> Prefix:
    """What two prompts are compared by: a number for the beginning of each of several lengths."""
    return tuple(hash(tuple(tokens[:cut])) for cut in _CUTS if cut <= len(tokens))


@dataclass(eq=False)
class Place:
    """A place in the line. `not_before`: when it may go, on the clock of `time.monotonic`; `arrival` is its number."""

    owner: Owner
    priority: Priority
    prefix: Prefix
    not_before: float = 0.0
    arrival: int = field(default=-1, init=False)


_P = TypeVar("_P", bound=Place)


class WaitingLine(Generic[_P]):
    """Places by owner and priority. Who takes one says so when its request is back (`returned`)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queues: dict[tuple[Priority, Owner], deque[_P]] = {}
        self._in_flight: Counter[str] = Counter()
        self._arrivals = 0
        self._taken = 0
        self._last: Prefix = ()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[_P]:
        for queue in self._queues.values():
            yield from queue

    def put(self, place: _P) -> None:
        """Joins the line, behind those of its owner; one that was there before goes back to where it was."""
        queue = self._queues.setdefault((place.priority, place.owner), deque())
        if place.arrival < 0:
            place.arrival = self._arrivals
            self._arrivals += 1
            queue.append(place)
        else:
            at = next((at for at, other in enumerate(queue) if other.arrival > place.arrival), len(queue))
            queue.insert(at, place)

    def remove(self, place: _P) -> bool:
        """Leaves the line; False where it is not in it."""
        key = place.priority, place.owner
        queue = self._queues.get(key)
        if queue is None or place not in queue:
            return False
        queue.remove(place)
        if not queue:
            del self._queues[key]
        return True

    def promote(self, place: _P) -> None:
        """Its work is needed now."""
        if place.priority != 0:
            waits = self.remove(place)
            place.priority = 0
            if waits:
                self.put(place)

    def take(self) -> _P | None:
        """The place that goes now, out of the line; None where none may."""
        now, in_flight = self._clock(), self._in_flight
        first: tuple[float, ...] = (math.inf,)
        ties: list[_P] = []
        for (priority, owner), queue in self._queues.items():
            place = queue[0] if queue[0].not_before <= now else _first(queue, now)
            if place is None:
                continue
            deadline = math.inf if owner.deadline is None else owner.deadline
            rank = priority, -owner.urgency, deadline, in_flight.get(owner.name, 0)
            if rank < first:
                first, ties = rank, []
            if rank == first:
                ties.append(place)
        if not ties:
            return None
        place = min(ties, key=self._turn)
        self.remove(place)
        self._in_flight[place.owner.name] += 1
        self._taken += 1
        self._last = place.prefix
        return place

    def returned(self, place: _P) -> None:
        """The request of a place that was taken is back."""
        name = place.owner.name
        self._in_flight[name] -= 1
        if self._in_flight[name] <= 0:
            del self._in_flight[name]

    def _turn(self, place: _P) -> tuple[int, int, int]:
        """The order among those of one rank."""
        if self._taken - place.arrival >= _OLD:
            return 0, 0, place.arrival
        prefix, last, shared = place.prefix, self._last, 0
        if prefix and last and prefix[0] == last[0]:
            shared = sum(mine == other for mine, other in zip(prefix, last, strict=False))
        return 1, -shared, place.arrival


def _first(queue: deque[_P], now: float) -> _P | None:
    return next((place for place in queue if place.not_before <= now), None)
