"""Gives sequences their pages: prefix hits, growth, copy-on-write forks, and the way back into the prefix tree."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from qpdsl.executor.engine.memory.kv_cache import PagePool, Pool
from qpdsl.executor.engine.memory.prefix_tree import PrefixMatch, PrefixNode, PrefixTree, Reclaimer, digests
from qpdsl.executor.engine.memory.residuals import Residuals
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.memory.state_blocks import StateBlocks


class Copies(Protocol):
    """Moves keys and values, in every layer; a `KVCache` does."""

    def copy_page(self, source: int, target: int, tokens: int) -> None:
        """Copies those of a page's first tokens."""

    def copy_token(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        """Copies those of one token, from a page and place to another."""


class KVCacheManager:
    """The pages of one model, in the memory that `cache` copies in.

    `flops` are the operations that computing one token again takes. Models that share an arena share a `reclaimer`.
    `hits` counts the prompt tokens that were found in the prefix tree. `residuals` has what waits of late tokens.
    Where layers keep states, these lie in `blocks`.
    """

    def __init__(
        self,
        pool: PagePool,
        cache: Copies,
        flops: float = 1.0,
        reclaimer: Reclaimer | None = None,
        blocks: Pool | None = None,
    ) -> None:
        self.page_size = pool.layout.page_size
        self._page_bytes, self._token_bytes = pool.layout.page_bytes, pool.layout.token_bytes
        self.pool = pool
        self.reclaimer = reclaimer or Reclaimer()
        self.residuals = Residuals(pool.arena, self.reclaimer, pool.owner)
        # To compute pages that hold nothing again costs nothing but the states, which have their own worth.
        cost = 0.0 if pool.layout.is_empty else flops / self._token_bytes
        self.tree = PrefixTree(pool, self.page_size, self.reclaimer.clock, cost)
        self.hits = 0
        self._cache = cache
        self.reclaimer.join(pool, self.tree)
        self.states: StateBlocks | None = None
        if blocks is not None:
            self.states = StateBlocks(blocks, self.tree, self.page_size, self.reclaimer, flops, self._token_bytes)

    @property
    def capacity(self) -> int:
        """Pages that one sequence could have, if nothing else were served."""
        pages = self.reclaimer.capacity(self.pool)
        if self.states is None:
            return pages
        # Its states take a slab, which may hold a page more than others.
        return max(0, pages - self.pool.arena.fewest_pages(self.pool.layout) - 1)

    @property
    def leased_bytes(self) -> int:
        """Bytes of all slabs that the model leases."""
        blocks = 0 if self.states is None else self.states.pool.leased_bytes
        return self.pool.leased_bytes + self.residuals.leased_bytes + blocks

    @property
    def state_bytes(self) -> int:
        """Bytes of the states that sequences or the prefix tree hold."""
        return 0 if self.states is None else self.states.held_bytes

    @property
    def live_bytes(self) -> int:
        """Bytes of the pages that sequences hold."""
        return (self.pool.held - self.tree.unused) * self._page_bytes

    @property
    def cached_bytes(self) -> int:
        """Bytes of the pages that the prefix tree alone holds."""
        return self.tree.unused * self._page_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes of the pages that can be taken without evicting or preempting anything."""
        return self.pool.free * self._page_bytes

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def prepare(self, sequence: Sequence) -> None:
        """Fills the hints of a sequence that is to wait."""
        cached = sequence.tokens[: sequence.stem] if sequence.request.cached else []
        sequence.digests = digests(cached, self.page_size, sequence.request.client.owner)

    def cached_pages(self, sequence: Sequence) -> int:
        """Whole pages of its prompt that `attach` would find in the prefix tree; a hint."""
        return self.tree.stored(self._cacheable(sequence))

    def next_missing(self, sequence: Sequence) -> int | None:
        """The digest of the first page after those; None where no later page may come from the cache."""
        cacheable = self._cacheable(sequence)
        stored = self.tree.stored(cacheable)
        return cacheable[stored] if stored < len(cacheable) else None

    def attach(
        self, sequence: Sequence, count: int, spare: int, *, cold_only: bool = False, force: bool = False
    ) -> bool:
        """Gives a sequence without pages the longest prefix that the tree holds, and sets `computed`.

        False, and nothing changed, unless the next `count` tokens fit behind it with `spare` pages left over, or with
        `force`. Pages beyond that prefix are not taken yet. `cold_only`: see `Reclaimer.reserve`.
        """
        match = self._match(sequence)
        held = match.pages if match.partial is None else (*match.pages, match.partial)
        self.pool.retain_all(held)
        length = match.length
        has_block = True
        if self.states is not None:
            self.states.start(sequence, match.block, length)
            has_block = self.states.prepare(sequence, cold_only=cold_only)
        more = self.pages_for(min(length + count, len(sequence.tokens))) - len(match.pages)
        has_room = has_block and self.reclaimer.reserve(self.pool, more + spare, cold_only=cold_only)
        if not has_room and not force:
            self.pool.release_all(held)
            if self.states is not None:
                self.states.drop(sequence)
            return False
        sequence.pages = list(match.pages)
        if match.partial is not None:
            if self.pool.free:
                sequence.pages.append(self._copy(match.partial, length % self.page_size))
            else:
                length = len(match.pages) * self.page_size
            self.pool.release(match.partial)
            if self.states is not None and sequence.states.seen != length:
                # Its states have seen more than its pages hold.
                self.states.drop(sequence)
                self.pool.release_all(match.pages)
                sequence.pages = []
                match, length = PrefixMatch((), None, 0, self.tree.root(sequence.request.client.owner)), 0
        sequence.computed = length
        sequence.limit = len(sequence.pages) * self.page_size
        sequence.node, sequence.published = match.node, len(match.pages)
        if self.states is not None:
            sequence.limit, sequence.states.branch = length, match.reach
        if not sequence.admitted:
            sequence.admitted = True
            sequence.cached = sequence.ticket.cached = min(length, sequence.prompt_length)
            self.hits += sequence.cached
        self.tree.missed(self._cacheable(sequence)[len(match.pages) :])
        return True

    def _match(self, sequence: Sequence) -> PrefixMatch:
        """Where a sequence without pages can go on from."""
        cacheable = sequence.cacheable if sequence.request.cached else 0
        owner = sequence.request.client.owner
        if self.states is None:
            return self.tree.match(sequence.tokens, cacheable, owner)
        return self.tree.match_states(sequence.tokens, cacheable, owner)

    def extend(self, sequence: Sequence, count: int, *, cold_only: bool = False) -> int:
        """Makes room to write the next `count` tokens, or as many as memory holds; returns how many.

        The late ones count among them, and have theirs.
        """
        if self.states is None:
            return self._extended(sequence, count, cold_only)
        if not self.states.prepare(sequence, cold_only=cold_only):
            return 0
        room = self._extended(sequence, count, cold_only)
        if room <= 0 and self.states.stay(sequence):
            room = self._extended(sequence, count, cold_only)
        return room

    def _extended(self, sequence: Sequence, count: int, cold_only: bool) -> int:
        """Makes room in pages: see `extend`."""
        start, size = sequence.computed, self.page_size
        at = start // size
        copies = start % size != 0 and self.pool.shared(sequence.pages[at])
        more = self.pages_for(start + count) - len(sequence.pages)
        if not self.reclaimer.reserve(self.pool, more + copies, cold_only=cold_only):
            free = self.pool.free
            if copies and free == 0:
                # The page to write may be shared with the tree alone, since a sibling ended: taking it needs no copy.
                if not self.tree.forget(sequence.pages[at]):
                    return 0
                return self._extended(sequence, count, cold_only)
            more = free - copies
            count = (len(sequence.pages) + more) * size - start
        if copies:
            page = self._copy(sequence.pages[at], start % size)
            self.pool.release(sequence.pages[at])
            sequence.pages[at] = page
        sequence.pages.extend([self.pool.take() for _ in range(more)])
        sequence.limit = len(sequence.pages) * size
        return count

    def accept(self, sequence: Sequence, place: int) -> None:
        """Takes the token computed `place` places behind the sequence's own as its next one."""
        size, at = self.page_size, sequence.computed
        if place:
            source = at + place
            self._cache.copy_token(
                (sequence.pages[source // size], source % size), (sequence.pages[at // size], at % size)
            )
        sequence.computed += 1

    def share(self, parent: Sequence, child: Sequence) -> None:
        """Lets a fork read its parent's pages; the first of them to write to the last one copies it."""
        self.pool.retain_all(parent.pages)
        child.pages = list(parent.pages)
        child.node, child.published = parent.node, parent.published
        # Neither may write before it has called `extend`.
        parent.limit = child.limit = parent.computed
        if self.states is not None:
            self.states.share(parent, child)

    def plan(self, chunk: Chunk, others: Iterable[Sequence]) -> None:
        """Where layers keep states, decides from where to where a chunk computes them. `others` wait."""
        if self.states is not None:
            sequence = chunk.sequence
            others = others if chunk.count > 1 and sequence.request.cached else ()
            self.states.plan(chunk, {self._shared(sequence, other) for other in others})

    def advance(self, chunk: Chunk) -> None:
        """Marks a chunk as computed. What it has filled of pages can be shared from now on, but for single tokens."""
        sequence = chunk.sequence
        sequence.computed += chunk.count
        if chunk.count > 1:
            self.publish(sequence)
        if self.states is None:
            return
        for tokens, block in self.states.advance(sequence):
            self._keep(sequence, tokens, block)
            self.states.pool.release(block)
        if sequence.states.keeps:
            self._keep(sequence, sequence.computed, sequence.states.block)
        if self.states.pool.shared(sequence.states.block):
            sequence.limit = sequence.computed

    def publish(self, sequence: Sequence) -> None:
        """Puts the whole pages that are computed into the prefix tree, where others can share them at once."""
        whole = min(sequence.computed, sequence.stem) // self.page_size
        if whole > sequence.published and sequence.request.cached:
            self._insert(sequence, whole * self.page_size)
            sequence.published = whole

    def retire(self, sequence: Sequence) -> None:
        """Ends a sequence: its computed tokens stay in the prefix tree, the last partial page included."""
        if sequence.request.cached:
            length, own = min(sequence.computed, sequence.stem), sequence.states
            if self.states is None:
                self._insert(sequence, length)
            elif own.seen == length:
                self._insert(sequence, length)
                assert sequence.node is not None
                self.states.kept.keep(sequence.node, own.block)
            else:
                self._insert(sequence, length - length % self.page_size)
        self.drop(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Takes a sequence's pages away, without keeping them; it would have to start over."""
        self.pool.release_all(sequence.pages)
        sequence.pages = []
        sequence.computed = sequence.limit = sequence.published = 0
        sequence.forget_deferred()
        sequence.node = None
        if self.states is not None:
            self.states.drop(sequence)

    def wasted_bytes(self, running: Iterable[Sequence]) -> int:
        """Bytes of the leased slabs that hold no token: room in pages, free pages, the ends of slabs."""
        room = len(self.tree) * self.page_size - self.tree.tokens
        room += sum([sequence.limit - sequence.reached for sequence in running])
        used = (self.pool.held + 1) * self._page_bytes
        wasted = room * self._token_bytes + self.pool.leased_bytes - used
        if self.states is not None:
            wasted += self.states.pool.leased_bytes - self.state_bytes
        return wasted

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """AssertionError unless every page is owned exactly as often as its sequences and the tree say."""
        owners = Counter(self.tree.pages())
        sequences = [*sequences]
        for sequence in sequences:
            owners.update(sequence.pages)
            assert len(sequence.pages) >= self.pages_for(sequence.reached)
            assert sequence.late == sum(map(len, sequence.deferred)), "each late token has its residual"
        self.pool.check_integrity(owners)
        assert self.tree.unused == sum(owners[page] == 1 for page in self.tree.pages())
        if self.states is not None:
            self.states.check_integrity(sequences)

    def _cacheable(self, sequence: Sequence) -> list[int]:
        return sequence.digests[: sequence.cacheable // self.page_size]

    def _insert(self, sequence: Sequence, length: int) -> None:
        node = sequence.node or self.tree.root(sequence.request.client.owner)
        sequence.node = self.tree.insert(sequence.tokens[:length], sequence.pages, node, sequence.published)

    def _keep(self, sequence: Sequence, tokens: int, block: int) -> None:
        """Puts the states after so many tokens, whole pages, into the prefix tree.

        They replace those at the page before, where the sequence is drawing and nobody has gone on from these.
        """
        assert self.states is not None
        if tokens // self.page_size > sequence.published:
            self._insert(sequence, tokens)
            sequence.published = tokens // self.page_size
        node, own = self._node_at(sequence, tokens), sequence.states
        is_new = self.states.kept.keep(node, block)
        if own.passed is not None:
            self.states.kept.replace(own.passed)
        own.passed = node if is_new and sequence.forked and tokens % self.states.spacing else None

    def _node_at(self, sequence: Sequence, tokens: int) -> PrefixNode:
        """The node of the page that ends after so many of its tokens."""
        node = sequence.node
        while node is not None and node.end > tokens:
            node = node.parent
        assert node is not None and node.end == tokens
        return node

    def _shared(self, sequence: Sequence, other: Sequence) -> int:
        """How many tokens, in whole pages, another sequence may find of what this one computes."""
        mine, its = sequence.digests, self._cacheable(other)
        count = min(len(mine), len(its))
        return bisect_left(range(count), True, key=lambda page: mine[page] != its[page]) * self.page_size

    def _copy(self, page: int, tokens: int) -> int:
        copy = self.pool.take()
        self._cache.copy_page(page, copy, tokens)
        return copy
