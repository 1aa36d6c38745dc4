"""The schedulers of one engine, and the one order in which their sequences came."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from qpdsl.executor.engine.sequence import Sequence

if TYPE_CHECKING:
    from qpdsl.executor.engine.reclaim import Reclaimer
    from qpdsl.executor.engine.scheduler import Scheduler


class Peers:
    """Schedulers whose models share memory.

    Ranks are compared across models, and only what ranks after a sequence gives way to it. So whichever runs and ranks
    first gets the memory that it needs, or has all there is: models that wait for each other cannot stand still.
    """

    def __init__(self) -> None:
        self.schedulers: list[Scheduler] = []
        self._arrivals = itertools.count()

    def arrival(self) -> int:
        """The number of the next request."""
        return next(self._arrivals)

    def first(self) -> Sequence | None:
        """The sequence that ranks first, running or waiting."""
        firsts = [queue[0] for each in self.schedulers for queue in (each.running, each.waiting) if queue]
        return min(firsts, key=_rank, default=None)

    def last_running(self) -> tuple[Scheduler, Sequence] | None:
        """The running sequence that ranks last, and whose it is."""
        lasts = [(each, each.running[-1]) for each in self.schedulers if each.running]
        return max(lasts, key=lambda last: last[1].rank, default=None)

    def free_slab(self, reclaimer: Reclaimer) -> bool:
        """Frees a slab for a model that comes, whatever it takes; False where scratch pages hold all there are."""
        while not reclaimer.free_slab():
            last = self.last_running()
            if last is None:
                return False
            owner, sequence = last
            owner.preempt(sequence)
        return True

    @property
    def running(self) -> int:
        return sum(len(each.running) for each in self.schedulers)


def _rank(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.rank
