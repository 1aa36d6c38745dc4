"""Gives sequences their pages: prefix hits, growth, copy-on-write forks, and the way back into the prefix tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from qpdsl.executor.engine.pool import PagePool
from qpdsl.executor.engine.radix import PrefixTree
from qpdsl.executor.engine.sequence import Sequence

# Eviction walks the tree's recency list, so it frees some pages ahead of need.
_EVICT_AT_LEAST = 32


class Memory:
    """The pages of one model. `copy_page(source, target)` moves the KV of one page on the device."""

    def __init__(self, pages: int, page_size: int, copy_page: Callable[[int, int], None]) -> None:
        self.page_size = page_size
        self.pool = PagePool(pages)
        self.tree = PrefixTree(self.pool, page_size)
        self._copy_page = copy_page

    @property
    def held(self) -> int:
        """Pages in use, by sequences or by the prefix tree."""
        return self.pool.capacity - self.pool.free

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def reserve(self, pages: int) -> bool:
        """Makes at least `pages` pages free, evicting from the prefix tree; False where that is not possible."""
        short = pages - self.pool.free
        if short > 0:
            self.tree.evict(max(short, _EVICT_AT_LEAST))
        return self.pool.free >= pages

    def attach(self, sequence: Sequence) -> None:
        """Gives a sequence without pages the longest prefix that the tree holds, and sets `computed`."""
        match = self.tree.match(sequence.tokens, sequence.cacheable)
        for page in match.pages:
            self.pool.retain(page)
        sequence.pages = list(match.pages)
        sequence.computed = len(match.pages) * self.page_size
        if match.partial is not None:
            self.pool.retain(match.partial)
            if self.reserve(1):
                copy = self.pool.take()
                self._copy_page(match.partial, copy)
                sequence.pages.append(copy)
                sequence.computed = match.length
            self.pool.release(match.partial)
        sequence.cached = max(sequence.cached, min(sequence.computed, sequence.prompt_length))

    def extend(self, sequence: Sequence, count: int) -> bool:
        """Makes room to write the next `count` tokens; False, and nothing changed, where memory is out."""
        more = self.pages_for(sequence.computed + count) - len(sequence.pages)
        copies = sequence.computed % self.page_size != 0 and self.pool.shared(sequence.pages[-1])
        if not self.reserve(more + copies):
            # A sibling that has ended may have left the tree the page that is written next: better its than a copy.
            if not copies or not self.tree.forget(sequence.pages[-1]):
                return False
            return self.extend(sequence, count)
        if copies:
            page = self.pool.take()
            self._copy_page(sequence.pages[-1], page)
            self.pool.release(sequence.pages[-1])
            sequence.pages[-1] = page
        sequence.pages.extend(self.pool.take() for _ in range(more))
        return True

    def share(self, parent: Sequence, child: Sequence) -> None:
        """Lets a fork read its parent's pages; whoever first writes to the last one copies it."""
        for page in parent.pages:
            self.pool.retain(page)
        child.pages = list(parent.pages)

    def publish(self, sequence: Sequence) -> None:
        """Puts the whole pages that are computed into the prefix tree, for others to share at once."""
        whole = sequence.computed // self.page_size
        self.tree.insert(sequence.tokens[: whole * self.page_size], sequence.pages[:whole])

    def retire(self, sequence: Sequence) -> None:
        """Ends a sequence: its computed tokens stay in the prefix tree, the last partial page included."""
        self.tree.insert(sequence.tokens[: sequence.computed], sequence.pages)
        self.drop(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Takes a sequence's pages away; it would have to start over."""
        for page in sequence.pages:
            self.pool.release(page)
        sequence.pages = []
        sequence.computed = 0

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """AssertionError unless every page is owned exactly as often as its sequences and the tree say."""
        owners = Counter(self.tree.pages())
        for sequence in sequences:
            owners.update(sequence.pages)
            assert len(sequence.pages) >= self.pages_for(sequence.computed)
        self.pool.check_integrity(owners)
