"""Which replica runs which row: no clock, no process, so that a simulation and a real run share it.

Rows are read from their source as far ahead as there is room for. Those with the same `affinity` make a group, and a
replica that begins a group goes on with it, since it has the prefix in its cache. A replica without rows begins the
oldest group that nobody has, and else takes the back half of the longest queue of another (work stealing: Blumofe and
Leiserson, 1999). What a row came to depends on none of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

# A row that was under way on so many replicas as they were lost fails; before its last chance it runs alone.
MAX_LOSSES = 3


@dataclass(slots=True)
class _Replica:
    """What a replica has: rows that it was given, rows that are kept for it, and the group that it is on.

    `alone`: it has one row, and gets no other beside it.
    """

    given: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    queue: deque[int] = field(default_factory=deque)
    group: Hashable = None
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """What the loss of a replica came to: rows that will run again, and rows that have now failed."""

    again: tuple[int, ...]
    failed: tuple[int, ...]


class RowScheduler:
    """Gives the rows of `source`, pairs of a number and an affinity (None: alone), to replicas that ask for one.

    `ahead` is how many rows are read before anybody asks for them. Every number stands once in the source. It is
    given to one replica at a time until `done` or `leave` takes it out; so an answer is accepted exactly once.
    """

    def __init__(self, source: Iterable[tuple[int, Hashable]], ahead: int) -> None:
        self._source: Iterator[tuple[int, Hashable]] = iter(source)
        self._ahead = ahead
        self._read_all = False
        self._waiting = 0
        # Groups that nobody has begun, oldest first. A group of one row with no affinity has its number for a name.
        self._fresh: dict[Hashable, deque[int]] = {}
        self._again: deque[int] = deque()
        self._alone: deque[int] = deque()
        self._home: dict[Hashable, str] = {}
        self._replicas: dict[str, _Replica] = {}
        self._losses: dict[int, int] = {}
        self._queued: set[str] = set()
        self._given = 0

    @property
    def waiting(self) -> int:
        """Rows that were read and that no replica has yet."""
        return self._waiting

    @property
    def given(self) -> int:
        """Rows that replicas have."""
        return self._given

    @property
    def finished(self) -> bool:
        """Whether every row of the source is done."""
        self._read()
        return self._read_all and not self._waiting and not self._given

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(self._replicas)

    def held(self, replica: str) -> int:
        """How many rows a replica has."""
        return len(self._replicas[replica].given)

    def idle_rows(self, replica: str) -> int:
        """How many of them it has not begun."""
        own = self._replicas[replica]
        return len(own.given) - len(own.begun)

    def join(self, replica: str) -> None:
        """A replica that takes rows from now on."""
        self._replicas[replica] = _Replica()

    def next(self, replica: str) -> int | None:
        """A row for a replica, which has it from now on; None where there is none for it now."""
        own = self._replicas[replica]
        if own.alone:
            return None
        if self._alone and not own.given:
            own.alone = True
            return self._give(own, self._alone.popleft())
        self._read()
        if self._again:
            return self._give(own, self._again.popleft())
        if not own.queue and not self._begin_group(replica, own) and not self._steal(replica, own):
            return None
        number = own.queue.popleft()
        if not own.queue:
            self._queued.discard(replica)
        return self._give(own, number)

    def begun(self, number: int, replica: str) -> None:
        """A replica has begun a row that it has."""
        own = self._replicas.get(replica)
        if own is not None and number in own.given:
            own.begun.add(number)

    def done(self, number: int, replica: str) -> bool:
        """A replica has an outcome for a row; whether it counts, as the replica has the row."""
        own = self._replicas.get(replica)
        if own is None or number not in own.given:
            return False
        self._take(own, number)
        self._losses.pop(number, None)
        return True

    def gave_back(self, numbers: Iterable[int], replica: str) -> None:
        """A replica has given back rows that it had not begun."""
        own = self._replicas.get(replica)
        for number in numbers:
            if own is not None and number in own.given:
                self._take(own, number)
                self._put_back(number)

    def leave(self, replica: str, *, blames: bool = True) -> Loss:
        """A replica is gone. With `blames` the rows that it had begun may be why; the others are not."""
        own = self._replicas.pop(replica, _Replica())
        self._queued.discard(replica)
        if self._home.get(own.group) == replica:
            del self._home[own.group]
        if own.queue:
            # What was kept for it is the oldest group now.
            left = self._fresh.pop(own.group, deque())
            self._fresh = {own.group: own.queue + left, **self._fresh}
        again, failed = [], []
        self._given -= len(own.given)
        for number in sorted(own.given):
            losses = self._losses.get(number, 0) + (blames and number in own.begun)
            if losses:
                self._losses[number] = losses
            if losses >= MAX_LOSSES:
                del self._losses[number]
                failed.append(number)
            else:
                self._put_back(number)
                again.append(number)
        return Loss(tuple(again), tuple(failed))

    def _read(self) -> None:
        """Reads rows until as many wait as are to be read ahead."""
        while not self._read_all and self._waiting < self._ahead:
            row = next(self._source, None)
            if row is None:
                self._read_all = True
                return
            number, group = row
            self._waiting += 1
            home = None if group is None else self._home.get(group)
            if home is not None:
                self._replicas[home].queue.append(number)
                self._queued.add(home)
            else:
                self._fresh.setdefault(("row", number) if group is None else group, deque()).append(number)

    def _begin_group(self, replica: str, own: _Replica) -> bool:
        """Has a replica begin the oldest group that nobody is on."""
        if not self._fresh:
            return False
        if self._home.get(own.group) == replica:
            del self._home[own.group]
        own.group = next(iter(self._fresh))
        own.queue = self._fresh.pop(own.group)
        self._home[own.group] = replica
        self._queued.add(replica)
        return True

    def _steal(self, replica: str, own: _Replica) -> bool:
        """Has a replica take the back half of the longest queue, one row at the least."""
        if not self._queued:
            return False
        victim = max(self._queued, key=lambda name: (len(self._replicas[name].queue), name))
        other = self._replicas[victim]
        count = (len(other.queue) + 1) // 2
        own.queue = deque(reversed([other.queue.pop() for _ in range(count)]))
        if self._home.get(own.group) == replica:
            del self._home[own.group]
        own.group = other.group
        self._queued.add(replica)
        if not other.queue:
            self._queued.discard(victim)
        return True

    def _give(self, own: _Replica, number: int) -> int:
        own.given.add(number)
        self._given += 1
        self._waiting -= 1
        return number

    def _take(self, own: _Replica, number: int) -> None:
        own.given.discard(number)
        own.begun.discard(number)
        own.alone = False
        self._given -= 1

    def _put_back(self, number: int) -> None:
        self._waiting += 1
        (self._alone if self._losses.get(number, 0) >= MAX_LOSSES - 1 else self._again).append(number)
