"""The order in which waiting requests go to a server.

Needed work goes before spare work, the urgent before the rest, an early deadline before a late one. Among equals
the client goes first that has the fewest requests at the server, so that no row waits for another's hundreds. Among
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

from qpdsl.executor.requests.request import Client, Priority

# Prefixes are compared at these lengths, in tokens.
_CUTS = (16, 64, 256, 1024, 4096)
# After so many others went, a request counts as old.
_OLD = 64

Prefix = tuple[int, ...]


def prefix_of(tokens: Sequence[int]) -> Prefix:
    """What two prompts are compared by: a number for the beginning of each of several lengths."""
    return tuple(hash(tuple(tokens[:cut])) for cut in _CUTS if cut <= len(tokens))


@dataclass(eq=False)
class QueuedRequest:
    """A request that waits. `not_before`: when it may go, on the clock of `time.monotonic`; `arrival` is its number."""

    client: Client
    priority: Priority
    prefix: Prefix
    not_before: float = 0.0
    arrival: int = field(default=-1, init=False)


_R = TypeVar("_R", bound=QueuedRequest)


class RequestQueue(Generic[_R]):
    """Requests by client and priority. Who takes one says so when it is back (`returned`)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queues: dict[tuple[Priority, Client], deque[_R]] = {}
        self._in_flight: Counter[str] = Counter()
        self._arrivals = 0
        self._taken = 0
        self._last: Prefix = ()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[_R]:
        for queue in self._queues.values():
            yield from queue

    def put(self, request: _R) -> None:
        """Joins the queue, behind those of its client; one that was there before goes back to where it was."""
        queue = self._queues.setdefault((request.priority, request.client), deque())
        if request.arrival < 0:
            request.arrival = self._arrivals
            self._arrivals += 1
            queue.append(request)
        else:
            at = next((at for at, other in enumerate(queue) if other.arrival > request.arrival), len(queue))
            queue.insert(at, request)

    def remove(self, request: _R) -> bool:
        """Leaves the queue; False where it is not in it."""
        key = request.priority, request.client
        queue = self._queues.get(key)
        if queue is None or request not in queue:
            return False
        queue.remove(request)
        if not queue:
            del self._queues[key]
        return True

    def promote(self, request: _R) -> None:
        """Its work is needed now."""
        if request.priority != 0:
            waits = self.remove(request)
            request.priority = 0
            if waits:
                self.put(request)

    def take(self) -> _R | None:
        """The request that goes now, out of the queue; None where none may."""
        now, in_flight = self._clock(), self._in_flight
        first: tuple[float, ...] = (math.inf,)
        ties: list[_R] = []
        for (priority, client), queue in self._queues.items():
            request = queue[0] if queue[0].not_before <= now else _first(queue, now)
            if request is None:
                continue
            deadline = math.inf if client.deadline is None else client.deadline
            rank = priority, -client.urgency, deadline, in_flight.get(client.name, 0)
            if rank < first:
                first, ties = rank, []
            if rank == first:
                ties.append(request)
        if not ties:
            return None
        request = min(ties, key=self._turn)
        self.remove(request)
        self._in_flight[request.client.name] += 1
        self._taken += 1
        self._last = request.prefix
        return request

    def returned(self, request: _R) -> None:
        """A request that was taken is back."""
        name = request.client.name
        self._in_flight[name] -= 1
        if self._in_flight[name] <= 0:
            del self._in_flight[name]

    def _turn(self, request: _R) -> tuple[int, int, int]:
        """The order among those of one rank."""
        if self._taken - request.arrival >= _OLD:
            return 0, 0, request.arrival
        prefix, last, shared = request.prefix, self._last, 0
        if prefix and last and prefix[0] == last[0]:
            shared = sum(mine == other for mine, other in zip(prefix, last, strict=False))
        return 1, -shared, request.arrival


def _first(queue: deque[_R], now: float) -> _R | None:
    return next((request for request in queue if request.not_before <= now), None)
