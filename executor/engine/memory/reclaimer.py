"""Memory for whichever model needs it, reclaimed from the prefix trees of all models of an engine."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

from qpdsl.executor.engine.memory.pool import PagePool
from qpdsl.executor.engine.memory.prefix_tree import EvictionClock, PrefixTree, Worth

_UNLIMITED: Worth = (float("inf"), 0)


class Reclaimer:
    """Evicts cached pages, those of least worth first (see `prefix_tree`), whichever model they belong to.

    Memory moves between models by slabs. A slab can be emptied where only the prefix tree holds its pages. Its worth is
    that of its most valuable page: no descendant of a page has more worth than the page.
    """

    def __init__(self) -> None:
        self.clock = EvictionClock()
        self._models: dict[PagePool, _ModelSlabs] = {}

    def join(self, pool: PagePool, tree: PrefixTree) -> None:
        """Makes a model one of those that share memory."""
        self._models[pool] = _ModelSlabs(pool, tree)

    def reserve(self, pool: PagePool, pages: int, *, cold_only: bool = False) -> bool:
        """Makes at least `pages` pages free for a model; False, with as many as there are, where it is not possible.

        With `cold_only`, only pages are evicted that have not been touched since a page of their worth was evicted.
        """
        if pool.free >= pages:
            return True
        limit = (self.clock.now, self.clock.touches) if cold_only else _UNLIMITED
        tree = self._models[pool].tree
        slab = self._cheapest_slab(pool)
        while pool.free < pages:
            page_worth = tree.cheapest()
            if slab is not None and (page_worth is None or slab[0] <= page_worth):
                if slab[0] > limit:
                    return False
                self._empty(*slab)
                slab = self._cheapest_slab(pool)
            elif page_worth is not None and page_worth <= limit:
                tree.evict()
            else:
                return False
        return True

    def free_slab(self) -> bool:
        """Makes sure that a slab is free, for a model to come; False where sequences hold a page of every slab."""
        if any(pool.arena.free for pool in self._models):
            return True
        slab = self._cheapest_slab(None)
        if slab is None:
            return False
        self._empty(*slab)
        return True

    def capacity(self, pool: PagePool) -> int:
        """Pages that a model has when it is served alone: the others keep the slab of their scratch page."""
        arena = pool.arena
        kept = [other.slab_of(other.scratch) for other in self._models if other is not pool]
        return pool.capacity - sum(len(arena.pages(slab, pool.layout)) for slab in kept)

    def _cheapest_slab(self, needing: PagePool | None) -> tuple[Worth, _ModelSlabs, int] | None:
        """The slab of least worth of the models other than `needing`: its worth, its model and its number."""
        cheapest: tuple[Worth, _ModelSlabs, int] | None = None
        for pool, slabs in self._models.items():
            slab = slabs.cheapest() if pool is not needing else None
            if slab is not None and (cheapest is None or slab[0] < cheapest[0]):
                cheapest = (slab[0], slabs, slab[1])
        return cheapest

    def _empty(self, worth: Worth, slabs: _ModelSlabs, slab: int) -> None:
        self.clock.now = max(self.clock.now, worth[0])
        for page in slabs.pool.held_in(slab):
            if slabs.tree.worth(page) is not None:
                slabs.tree.evict_page(page)


class _ModelSlabs:
    """The slabs of one model that could be emptied, in a heap, each with its worth or a smaller one from before."""

    def __init__(self, pool: PagePool, tree: PrefixTree) -> None:
        self.pool = pool
        self.tree = tree
        self._heap: list[tuple[Worth, int]] = []
        self._entries: dict[int, Worth] = {}

    def cheapest(self) -> tuple[Worth, int] | None:
        """The least worth and the slab that has it; None where no slab can be emptied."""
        heap, entries = self._heap, self._entries
        # Only a released page can lower a slab's worth, or make a slab one that can be emptied.
        for slab in self.pool.releasing_slabs():
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
        """The worth of its most valuable page; None where a sequence holds one."""
        most: Worth | None = None
        for page in self.pool.held_in(slab):
            worth = self.tree.worth(page)
            if worth is None or self.pool.shared(page):
                return None
            if most is None or worth > most:
                most = worth
        return most
