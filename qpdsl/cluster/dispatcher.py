"""What is sent to which replica when: the driver's bookkeeping, without clocks and processes.

Each method takes what a replica said, and returns the commands that follow. A replica has a few rows beside those that
it runs, so that it never waits for the next; they come back where another has nothing to do. Rows are held from when
they are read until they are done: as many as the replicas have, and as are read ahead.

Rows whose prompts begin with the same long text are better run by one replica, as a prefix cache is a replica's own.
Beginnings that all rows share (instructions, examples) are soon in every cache, so they do not count; what counts is a
text of the row itself, such as a document with several questions about it. A problem that several jobs of a sweep run
goes to one replica too, where its prefix, its scores and its samples are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from qpdsl.cluster.replica.messages import Command, GiveBack, Take, Task
from qpdsl.cluster.row_scheduler import RowScheduler
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.store.run_record import row_key

# A shorter beginning is computed again sooner than a replica would be waited for: about a hundred tokens.
_LEAST = 512

# Rows that a replica has beside those that it has begun.
AHEAD = 2
# Rows that are read for each replica before it asks for them, so that rows that belong together are found.
READ_AHEAD = 16
Commands = list[tuple[str, Command]]


def affinity(row: InputRow, jobs: int = 1) -> Hashable:
    """What rows have in common that are better run by one replica; None for a row that goes anywhere.

    `jobs` is how many jobs the run has, each of which may run the row.
    """
    if jobs > 1:
        return row_key(row)
    return beginning(value for value in row.arguments.values() if isinstance(value, str))


def beginning(texts: Iterable[str]) -> bytes | None:
    """What the longest of some texts has in common with others that a cache is shared with; None where it is short."""
    longest = max(texts, key=len, default="")
    return blake2b(longest[:_LEAST].encode(), digest_size=8).digest() if len(longest) >= _LEAST else None


@dataclass(frozen=True, slots=True)
class Departure:
    """What follows the loss of a replica: rows that run again, rows that failed, and what is to be sent."""

    again: tuple[int, ...]
    failed: tuple[Task, ...]
    commands: Commands


class Dispatcher:
    """Gives `tasks`, whose numbers are all different, to up to `most` replicas. `jobs`: see `affinity`.

    `expected` is how many replicas run or load: none is given more than its share of the rows that are known.
    """

    def __init__(self, tasks: Iterable[Task], most: int, jobs: int = 1) -> None:
        self.expected = most
        self._tasks: dict[int, Task] = {}
        self._rows = RowScheduler(self._numbers(tasks, jobs), READ_AHEAD * most)
        self._hungry: set[str] = set()
        self._asked: set[str] = set()

    @property
    def finished(self) -> bool:
        """Whether every row is done."""
        return self._rows.finished

    @property
    def waiting(self) -> int:
        """Rows that were read and that no replica has; there are more where they are as many as are read ahead."""
        return self._rows.waiting

    @property
    def kept(self) -> int:
        """How many rows are in memory."""
        return len(self._tasks)

    @property
    def idle(self) -> list[str]:
        """Replicas that have no row, in the order in which they joined."""
        return [name for name in self._rows.replicas if not self._rows.held(name)]

    def join(self, replica: str) -> Commands:
        """A replica is ready."""
        self._rows.join(replica)
        return self._fill(replica)

    def begun(self, replica: str, number: int) -> Commands:
        """A replica has begun a row."""
        self._rows.begun(number, replica)
        return self._fill(replica)

    def done(self, replica: str, number: int) -> tuple[Task | None, Commands]:
        """A replica has the outcome of a row: the row, None where it does not have that row, and what follows."""
        if not self._rows.done(number, replica):
            return None, []
        return self._tasks.pop(number), self._fill(replica)

    def gave_back(self, replica: str, numbers: Iterable[int]) -> Commands:
        """A replica has given back rows."""
        self._asked.discard(replica)
        self._rows.gave_back(numbers, replica)
        return self._feed()

    def leave(self, replica: str, *, blames: bool = True) -> Departure:
        """A replica is gone; `blames`: see `RowScheduler.leave`."""
        self._hungry.discard(replica)
        self._asked.discard(replica)
        loss = self._rows.leave(replica, blames=blames)
        failed = tuple(self._tasks.pop(number) for number in loss.failed)
        return Departure(loss.again, failed, self._feed())

    def _numbers(self, tasks: Iterable[Task], jobs: int) -> Iterator[tuple[int, Hashable]]:
        for task in tasks:
            self._tasks[task.number] = task
            yield task.number, affinity(task.row, jobs)

    def _fill(self, replica: str) -> Commands:
        """What a replica is sent now: rows, as many as it may have. Where it has none, another is asked for some."""
        rows = self._rows
        found: list[Task] = []
        while rows.idle_rows(replica) < AHEAD and rows.held(replica) < self._share:
            number = rows.next(replica)
            if number is None:
                break
            found.append(self._tasks[number])
        if found:
            self._hungry.discard(replica)
            return [(replica, Take(tuple(found)))]
        if rows.held(replica):
            return []
        self._hungry.add(replica)
        return self._reclaim()

    def _feed(self) -> Commands:
        """Fills the replicas that have no rows, now that some have come back."""
        commands: Commands = []
        for replica in sorted(self._hungry):
            commands += self._fill(replica)
        return commands

    def _reclaim(self) -> Commands:
        """Asks the replica with the most rows that it has not begun for half of them."""
        if len(self._asked) >= len(self._hungry):
            return []
        others = [name for name in self._rows.replicas if name not in self._asked and self._rows.idle_rows(name)]
        if not others:
            return []
        most = max(others, key=self._rows.idle_rows)
        self._asked.add(most)
        return [(most, GiveBack((self._rows.idle_rows(most) + 1) // 2))]

    @property
    def _share(self) -> int:
        """How many rows one replica may have: an equal part of those that are known, so that late ones get some."""
        known = self._rows.waiting + self._rows.given
        return max(1, math.ceil(known / max(self.expected, 1)))
