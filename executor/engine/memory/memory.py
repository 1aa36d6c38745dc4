"""Gives sequences their pages: prefix hits, growth, copy-on-write forks, and the way back into the prefix tree.

MERGED: Memory for whoever needs it, out of the prefix trees of all models of an engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush, heapreplace

from qpdsl.executor.engine.memory.pool import PagePool
from qpdsl.executor.engine.memory.prefix_tree import Clock, PrefixTree, Worth, digests
from qpdsl.executor.engine.memory.sequence import Sequence

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


class Memory:
    """The pages of one model. `copy_page(source, target, tokens)` copies the KV of a page's first tokens.

    `flops` are the operations that computing one token again takes. Models that share an arena share a `reclaimer`.
    """

    def __init__(
        self,
        pool: PagePool,
        copy_page: Callable[[int, int, int], None],
        flops: float = 1.0,
        reclaimer: Reclaimer | None = None,
    ) -> None:
        self.page_size = pool.layout.page_size
        self._page_bytes, self._token_bytes = pool.layout.page_bytes, pool.layout.token_bytes
        self.pool = pool
        self.reclaimer = reclaimer or Reclaimer()
        self.tree = PrefixTree(pool, self.page_size, self.reclaimer.clock, flops / self._token_bytes)
        self.hits = 0
        self._copy_page = copy_page
        self.reclaimer.join(self)

    @property
    def capacity(self) -> int:
        """Pages that one sequence could have, with nobody else served."""
        return self.reclaimer.capacity(self)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def prepare(self, sequence: Sequence) -> None:
        """Fills the hints of a sequence that comes to wait."""
        sequence.digests = digests(sequence.tokens, self.page_size) if sequence.request.cached else []

    def cached_pages(self, sequence: Sequence) -> int:
        """Whole pages of its prompt that `attach` would find in the prefix tree; a hint."""
        return self.tree.stored(self._cacheable(sequence))

    def next_missing(self, sequence: Sequence) -> int | None:
        """The digest of the next page after those; None where the others are not for the cache to give."""
        wanted = self._cacheable(sequence)
        stored = self.tree.stored(wanted)
        return wanted[stored] if stored < len(wanted) else None

    def attach(self, sequence: Sequence, count: int, spare: int, *, cold: bool = False, force: bool = False) -> bool:
        """Gives a sequence without pages the longest prefix that the tree holds, and sets `computed`.

        False, and nothing changed, unless the next `count` tokens fit behind it with `spare` pages left over, or with
        `force`; nothing beyond what is found is taken yet. `cold`: see `Reclaimer.reserve`.
        """
        match = self.tree.match(sequence.tokens, sequence.cacheable if sequence.request.cached else 0)
        held = match.pages if match.partial is None else (*match.pages, match.partial)
        self.pool.retain_all(held)
        length = match.length
        more = self.pages_for(min(length + count, len(sequence.tokens))) - len(match.pages)
        if not self.reclaimer.reserve(self, more + spare, cold=cold) and not force:
            self.pool.release_all(held)
            return False
        sequence.pages = list(match.pages)
        if match.partial is not None:
            if self.pool.free:
                sequence.pages.append(self._copy(match.partial, length % self.page_size))
            else:
                length = len(match.pages) * self.page_size
            self.pool.release(match.partial)
        sequence.computed = length
        sequence.limit = len(sequence.pages) * self.page_size
        sequence.node, sequence.published = match.node, len(match.pages)
        if not sequence.admitted:
            sequence.admitted = True
            sequence.cached = min(length, sequence.prompt_length)
            self.hits += sequence.cached
        self.tree.missed(self._cacheable(sequence)[len(match.pages) :])
        return True

    def extend(self, sequence: Sequence, count: int, *, cold: bool = False) -> int:
        """Makes room to write the next `count` tokens, or as many as memory holds; returns how many."""
        start, size = sequence.computed, self.page_size
        at = start // size
        copies = start % size != 0 and self.pool.shared(sequence.pages[at])
        more = self.pages_for(start + count) - len(sequence.pages)
        if not self.reclaimer.reserve(self, more + copies, cold=cold):
            free = self.pool.free
            if copies and free == 0:
                # A sibling that has ended may have left the tree the page that is written next: better its than a copy.
                return self.extend(sequence, count, cold=cold) if self.tree.forget(sequence.pages[at]) else 0
            more = free - copies
            count = (len(sequence.pages) + more) * size - start
        if copies:
            page = self._copy(sequence.pages[at], start % size)
            self.pool.release(sequence.pages[at])
            sequence.pages[at] = page
        sequence.pages.extend([self.pool.take() for _ in range(more)])
        sequence.limit = len(sequence.pages) * size
        return count

    def share(self, parent: Sequence, child: Sequence) -> None:
        """Lets a fork read its parent's pages; whoever first writes to the last one copies it."""
        self.pool.retain_all(parent.pages)
        child.pages = list(parent.pages)
        child.node, child.published = parent.node, parent.published
        # Neither may write before it has asked.
        parent.limit = child.limit = parent.computed

    def publish(self, sequence: Sequence) -> None:
        """Puts the whole pages that are computed into the prefix tree, for others to share at once."""
        whole = sequence.computed // self.page_size
        if whole > sequence.published and sequence.request.cached:
            self._insert(sequence, whole * self.page_size)
            sequence.published = whole

    def retire(self, sequence: Sequence) -> None:
        """Ends a sequence: its computed tokens stay in the prefix tree, the last partial page included."""
        if sequence.request.cached:
            self._insert(sequence, sequence.computed)
        self.drop(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Takes a sequence's pages away; it would have to start over."""
        self.pool.release_all(sequence.pages)
        sequence.pages = []
        sequence.computed = sequence.limit = sequence.published = 0
        sequence.node = None

    def wasted_bytes(self, running: Iterable[Sequence]) -> int:
        """Bytes of the leased slabs that hold no token: room in pages, free pages, the ends of slabs."""
        room = len(self.tree) * self.page_size - self.tree.tokens
        room += sum([sequence.limit - sequence.computed for sequence in running])
        used = (self.pool.held + 1) * self._page_bytes
        return room * self._token_bytes + self.pool.leased_bytes - used

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """AssertionError unless every page is owned exactly as often as its sequences and the tree say."""
        owners = Counter(self.tree.pages())
        for sequence in sequences:
            owners.update(sequence.pages)
            assert len(sequence.pages) >= self.pages_for(sequence.computed)
        self.pool.check_integrity(owners)

    def _cacheable(self, sequence: Sequence) -> list[int]:
        return sequence.digests[: sequence.cacheable // self.page_size]

    def _insert(self, sequence: Sequence, length: int) -> None:
        sequence.node = self.tree.insert(sequence.tokens[:length], sequence.pages, sequence.node, sequence.published)

    def _copy(self, page: int, tokens: int) -> int:
        copy = self.pool.take()
        self._copy_page(page, copy, tokens)
        return copy
