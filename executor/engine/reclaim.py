"""Memory for whoever needs it, out of the prefix trees of all models of an engine."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from qpdsl.executor.engine.radix import Clock, Worth

if TYPE_CHECKING:
    from qpdsl.executor.engine.memory import Memory

_ANYTHING: Worth = (float("inf"), 0)


class Reclaimer:
    """Takes cached pages away, those that are worth least first (see `radix`), whichever model they belong to.

    Memory moves between models by slabs: a slab can be emptied where only the prefix tree holds its pages. It is worth
    its most valuable page: what builds on a page is never worth more.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self._slabs: dict[Memory, _Slabs] = {}

    def join(self, memory: Memory) -> None:
        self._slabs[memory] = _Slabs(memory)

    def reserve(self, memory: Memory, pages: int, *, cold: bool = False) -> bool:
        """Makes at least `pages` pages free for a model; False, with as many as there are, where it is not possible.

        With `cold`, only pages go that have not been touched since pages of their worth were evicted last.
        """
        pool = memory.pool
        if pool.free >= pages:
            return True
        limit = (self.clock.now, self.clock.touches) if cold else _ANYTHING
        other = self._cheapest_slab(memory)
        while pool.free < pages:
            own = memory.tree.cheapest()
            if other is not None and (own is None or other[0] <= own):
                if other[0] > limit:
                    return False
                self._empty(*other)
                other = self._cheapest_slab(memory)
            elif own is not None and own <= limit:
                memory.tree.evict()
            else:
                return False
        return True

    def free_slab(self) -> bool:
        """Makes sure that a slab is free, for a model that comes; False where sequences hold a page of every one."""
        for slabs in self._slabs.values():
            if slabs.memory.pool.arena.free:
                return True
        found = self._cheapest_slab(None)
        if found is None:
            return False
        self._empty(*found)
        return True

    def capacity(self, memory: Memory) -> int:
        """Pages that a model has when it is served alone: the others keep the slab of their scratch page."""
        arena = memory.pool.arena
        kept = [other.pool.slab_of(other.pool.scratch) for other in self._slabs if other is not memory]
        return memory.pool.capacity - sum(len(arena.pages(slab, memory.pool.layout)) for slab in kept)

    def _cheapest_slab(self, wanting: Memory | None) -> tuple[Worth, _Slabs, int] | None:
        best: tuple[Worth, _Slabs, int] | None = None
        for memory, slabs in self._slabs.items():
            found = slabs.cheapest() if memory is not wanting else None
            if found is not None and (best is None or found[0] < best[0]):
                best = (found[0], slabs, found[1])
        return best

    def _empty(self, worth: Worth, slabs: _Slabs, slab: int) -> None:
        self.clock.now = max(self.clock.now, worth[0])
        tree, pool = slabs.memory.tree, slabs.memory.pool
        for page in pool.held_in(slab):
            if tree.worth(page) is not None:
                tree.evict_page(page)


class _Slabs:
    """The slabs of one model that could be emptied, in a heap with a worth of their own or an older, smaller one."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._heap: list[tuple[Worth, int]] = []
        self._entries: dict[int, Worth] = {}

    def cheapest(self) -> tuple[Worth, int] | None:
        heap, entries = self._heap, self._entries
        # Only where a page was let go has a slab become cheaper, or one that could not be emptied before.
        for slab in self.memory.pool.loosened():
            worth = self._worth(slab)
            if worth is not None and entries.get(slab) != worth:
                entries[slab] = worth
                heappush(heap, (worth, slab))
        while heap:
            worth, slab = heap[0]
            if entries.get(slab) != worth:
                heappop(heap)
                continue
            now = self._worth(slab)
            if now == worth:
                return worth, slab
            if now is None:
                heappop(heap)
                del entries[slab]
            else:
                entries[slab] = now
                heapreplace(heap, (now, slab))
        return None

    def _worth(self, slab: int) -> Worth | None:
        pool, tree = self.memory.pool, self.memory.tree
        most: Worth | None = None
        for page in pool.held_in(slab):
            worth = tree.worth(page)
            if worth is None or pool.shared(page):
                return None
            if most is None or worth > most:
                most = worth
        return most
