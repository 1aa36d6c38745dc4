"""The prefix tree: KV pages that are computed, found again by the tokens they hold (SGLang's RadixAttention).

A node is a page. A node with fewer tokens than a page holds is a leaf. A request that shares the beginning of a page
takes a copy of that part, so prefixes are found by the token. Pages in the tree are never written. Each owner of
requests has a root of its own, and finds no page of others.

Which pages to keep is decided by GreedyDual-Size (Cao and Irani, 1997). A page's worth is the clock at its last touch
plus the cost, per byte, of computing it again; the clock is the worth of the page that was evicted last. So of pages of
the same age those that cost less go first, and the others go too once they have not been touched for long enough. Pages
of equal worth go by least recent use. A `Reclaimer` takes memory from the trees of all models for the one that needs
it.

Where layers keep states besides, a prefix can be gone on from only where a node has these too (`state_blocks.py`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from typing import Protocol

from qpdsl.executor.engine.memory.kv_cache import PagePool, Pool

Tokens = tuple[int, ...]
# A page's worth, and the number of its last touch: the smallest goes first.
Worth = tuple[float, int]
# Digests of evicted pages that are remembered, at least.
_MIN_GHOSTS = 1024
# Entries of a heap that may be passed over before it is made anew.
_SPARE_ENTRIES = 64
_UNLIMITED: Worth = (float("inf"), 0)


@dataclass(eq=False, slots=True)
class PrefixNode:
    """A page in the tree. `digest` hashes all tokens from the root to its end, `end` counts them.

    `order` has the keys of the children, ascending. `block` has the states after them, None where these are not kept;
    they are worth `gain` above the clock.
    """

    tokens: Tokens
    page: int
    parent: PrefixNode | None
    digest: int
    worth: Worth = (0.0, 0)
    children: dict[Tokens, PrefixNode] = field(default_factory=dict)
    order: list[Tokens] = field(default_factory=list)
    end: int = 0
    block: int | None = None
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Whole pages that hold the prefix, then the page to copy for the rest of it: `length` tokens in all.

    `node` is that of the last whole page, or the owner's root. Where states are kept, `block` has those after these
    tokens, and `reach` tokens are stored in whole pages, with states or without.
    """

    pages: tuple[int, ...]
    partial: int | None
    length: int
    node: PrefixNode
    block: int | None = None
    reach: int = 0


@dataclass(slots=True)
class EvictionClock:
    """The clock of GreedyDual-Size, and a count of touches; all trees of an engine share one."""

    now: float = 0.0
    touches: int = 0


class WorthHeap:
    """The things of least worth, by their numbers. `worth_of` says what one is worth, None where it cannot go.

    Worth may rise untold: an entry has the worth of its thing or a smaller one. One whose worth has fallen, or that can
    go now, has to be pushed (again); entries that were pushed before it are passed over.
    """

    def __init__(self, worth_of: Callable[[int], Worth | None]) -> None:
        self._worth_of = worth_of
        self._heap: list[tuple[Worth, int]] = []
        # The entry of each that counts.
        self._entries: dict[int, Worth] = {}

    def push(self, number: int) -> None:
        """Takes one in, where it can go."""
        worth, known = self._worth_of(number), self._entries.get(number)
        if worth is None or (known is not None and known <= worth):
            return
        if len(self._heap) > 2 * len(self._entries) + _SPARE_ENTRIES:
            self._heap = sorted((entry, one) for one, entry in self._entries.items())
        self._entries[number] = worth
        heappush(self._heap, (worth, number))

    def least(self) -> tuple[Worth, int] | None:
        """The least worth and what has it; None where nothing can go."""
        while self._heap:
            entry, number = self._heap[0]
            worth = self._worth_of(number)
            if self._entries.get(number) != entry:
                heappop(self._heap)
            elif worth == entry:
                return entry, number
            elif worth is None:
                heappop(self._heap)
                del self._entries[number]
            else:
                self._entries[number] = worth
                heapreplace(self._heap, (worth, number))
        return None


def digests(tokens: Sequence[int], page_size: int, owner: str = "") -> list[int]:
    """A hash of all tokens up to the end of each whole page. Only a hint: different tokens may have equal hashes."""
    hashes: list[int] = []
    digest = _root_digest(owner)
    for start in range(0, len(tokens) - page_size + 1, page_size):
        digest = hash((digest, *tokens[start : start + page_size]))
        hashes.append(digest)
    return hashes


def _alike(one: Tokens, other: Tokens) -> int:
    """How many tokens two texts begin with alike."""
    count = 0
    for token, twin in zip(one, other, strict=False):
        if token != twin:
            break
        count += 1
    return count


def _root_digest(owner: str) -> int:
    return hash(owner)


class PrefixTree:
    """Holds one reference to every page in it. `cost`: operations to compute a token again, for each byte of its KV.

    A sequence that holds a page of the tree holds the pages of all its ancestors, since `insert` replaces equal pages
    by the tree's. So evicting pages that no sequence holds takes none that one does. `unused` counts the pages that no
    sequence holds.
    """

    def __init__(self, pool: PagePool, page_size: int, clock: EvictionClock | None = None, cost: float = 1.0) -> None:
        self._roots: dict[str, PrefixNode] = {}
        self.evictions = 0
        self.thrashed = 0
        self.tokens = 0
        self.unused = 0
        self._pool = pool
        self._page_size = page_size
        self._clock = clock or EvictionClock()
        self._cost = cost / page_size
        self._nodes: dict[int, PrefixNode] = {}
        self._digests: dict[int, PrefixNode] = {}
        self._leaves = WorthHeap(self._leaf_worth)
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        # Called with each node that goes.
        self.on_remove: Callable[[PrefixNode], None] = lambda node: None
        pool.on_shared, pool.on_unshared = self._shared, self._unshared

    def __len__(self) -> int:
        return len(self._nodes)

    def root(self, owner: str = "") -> PrefixNode:
        """Where the pages of one owner's requests begin."""
        root = self._roots.get(owner)
        if root is None:
            root = self._roots[owner] = PrefixNode((), 0, None, _root_digest(owner))
        return root

    def match(self, tokens: Sequence[int], limit: int, owner: str = "") -> PrefixMatch:
        """The longest prefix of `tokens` that is stored for an owner, at most `limit` tokens of it.

        Takes no references.
        """
        node, pages = self._whole(tokens, limit, owner)
        start = node.end
        # No stored page is a whole page of the rest; of the one that begins most like it that part can be copied.
        rest = tuple(tokens[start : min(limit, start + self._page_size)])
        place = bisect_left(node.order, rest)
        nearest = max(node.order[max(place - 1, 0) : place + 1], key=lambda key: _alike(key, rest), default=())
        if length := _alike(nearest, rest):
            child = node.children[nearest]
            self.touch(child)
            return PrefixMatch(tuple(pages), child.page, start + length, node)
        self.touch(node)
        return PrefixMatch(tuple(pages), None, start, node)

    def match_states(self, tokens: Sequence[int], limit: int, owner: str = "") -> PrefixMatch:
        """As `match`, but up to the last node that keeps states; from nothing where none does."""
        node, pages = self._whole(tokens, limit, owner)
        reach = node.end
        while True:
            start, whole = node.end, tuple(pages[: node.end // self._page_size])
            for stop in range(min(limit, start + self._page_size - 1), start, -1) if node.children else ():
                leaf = node.children.get(tuple(tokens[start:stop]))
                if leaf is not None and leaf.block is not None:
                    self.touch(leaf)
                    return PrefixMatch(whole, leaf.page, stop, node, leaf.block, reach)
            if node.block is not None or node.parent is None:
                self.touch(node)
                return PrefixMatch(whole, None, start, node, node.block, reach)
            node = node.parent

    def _whole(self, tokens: Sequence[int], limit: int, owner: str) -> tuple[PrefixNode, list[int]]:
        """The node of the last whole page that is stored, and all of them."""
        node = self.root(owner)
        pages: list[int] = []
        while node.end + self._page_size <= limit:
            child = node.children.get(tuple(tokens[node.end : node.end + self._page_size]))
            if child is None:
                break
            node = child
            pages.append(child.page)
        return node, pages

    def stored(self, digests: Sequence[int]) -> int:
        """How many of the leading pages with these digests are stored. Touches nothing."""
        return bisect_left(digests, True, key=lambda digest: digest not in self._digests)

    def insert(
        self, tokens: Sequence[int], pages: list[int], node: PrefixNode | None = None, start: int = 0
    ) -> PrefixNode:
        """Stores the pages that hold `tokens`, from page `start` on, the child of `node`; returns the last node.

        Where the same tokens are stored already, their page replaces the caller's in `pages`.
        """
        node = node or self.root()
        for index in range(start, -(-len(tokens) // self._page_size)):
            key = tuple(tokens[index * self._page_size : (index + 1) * self._page_size])
            child = node.children.get(key)
            if child is None:
                child = self._add(node, key, pages[index])
            elif child.page != pages[index]:
                self._pool.retain(child.page)
                self._pool.release(pages[index])
                pages[index] = child.page
            node = child
        self.touch(node)
        return node

    def cheapest(self) -> Worth | None:
        """The worth of the page that `evict` would free; None where it could free none."""
        found = self._leaves.least()
        return None if found is None else found[0]

    def evict(self) -> bool:
        """Frees the page of least worth that only the tree holds; False where there is none."""
        found = self._leaves.least()
        if found is None:
            return False
        worth, page = found
        self._clock.now = max(self._clock.now, worth[0])
        self._evict_leaf(self._nodes[page])
        return True

    def worth(self, page: int) -> Worth | None:
        """A page's worth; None where it is not in the tree."""
        node = self._nodes.get(page)
        return None if node is None else node.worth

    def evict_page(self, page: int) -> None:
        """Evicts a page and all its descendants."""
        subtree = [self._nodes[page]]
        for node in subtree:
            subtree.extend(node.children.values())
        for node in reversed(subtree):
            self._evict_leaf(node)

    def forget(self, page: int) -> bool:
        """Takes a leaf's page out of the tree; False where it is not in the tree, or not a leaf's."""
        node = self._nodes.get(page)
        if node is None or node.children:
            return False
        self._remove(node)
        return True

    def missed(self, digests: Sequence[int]) -> int:
        """Counts as thrashed the leading pages with these digests that were evicted lately; returns how many."""
        count = 0
        for digest in digests:
            if self._ghosts.pop(digest, self) is self:
                break
            count += 1
        self.thrashed += count
        return count

    def pages(self) -> Iterator[int]:
        return iter(self._nodes)

    def _add(self, parent: PrefixNode, tokens: Tokens, page: int) -> PrefixNode:
        node = PrefixNode(tokens, page, parent, hash((parent.digest, *tokens)), end=parent.end + len(tokens))
        parent.children[tokens] = node
        insort(parent.order, tokens)
        self._pool.retain(page)
        self._nodes[page] = node
        self._digests[node.digest] = node
        self.tokens += len(tokens)
        return node

    def _evict_leaf(self, leaf: PrefixNode) -> None:
        self.evictions += 1
        self._ghosts[leaf.digest] = None
        if len(self._ghosts) > max(_MIN_GHOSTS, 2 * self._pool.capacity):
            self._ghosts.popitem(last=False)
        self._remove(leaf)

    def _remove(self, leaf: PrefixNode) -> None:
        parent = leaf.parent
        assert parent is not None and not leaf.children
        self.on_remove(leaf)
        del parent.children[leaf.tokens]
        del parent.order[bisect_left(parent.order, leaf.tokens)]
        del self._nodes[leaf.page]
        self._digests.pop(leaf.digest, None)
        leaf.parent = None
        self.tokens -= len(leaf.tokens)
        self.unused -= not self._pool.shared(leaf.page)
        self._pool.release(leaf.page)
        self._leaves.push(parent.page)

    def _shared(self, page: int) -> None:
        self.unused -= page in self._nodes

    def _unshared(self, page: int) -> None:
        self.unused += page in self._nodes
        self._leaves.push(page)

    def _leaf_worth(self, page: int) -> Worth | None:
        """The worth of a leaf's page that only the tree holds; None for any other."""
        node = self._nodes.get(page)
        return None if node is None or node.children or self._pool.shared(page) else node.worth

    def touch(self, node: PrefixNode | None) -> None:
        """Touches the node and its ancestors, so that none has less worth than its descendants."""
        clock = self._clock
        least = 0.0
        while node is not None and node.parent is not None:
            clock.touches += 1
            # States are no use without the pages before them.
            least = max(least, node.worth[0], clock.now + max(node.gain, self._cost * len(node.tokens)))
            node.worth = (least, clock.touches)
            node = node.parent


class Evictable(Protocol):
    """What is kept only until its memory is needed."""

    def cheapest(self) -> Worth | None:
        """The worth of what `evict` would free; None where it could free nothing."""
        ...

    def evict(self) -> bool:
        """Frees what is worth least; False where there is nothing."""
        ...

    def worth(self, page: int) -> Worth | None:
        """What a page is worth; None where it is not kept here."""
        ...

    def evict_page(self, page: int) -> None:
        """Frees a page, and what needs it."""
        ...


class Reclaimer:
    """Evicts cached pages, those of least worth first (see `prefix_tree`), whichever model they belong to.

    Memory moves between models by slabs. A slab can be emptied where only the prefix tree holds its pages. Its worth is
    that of its most valuable page: no descendant of a page has more worth than the page.
    """

    def __init__(self) -> None:
        self.clock = EvictionClock()
        self._models: dict[Pool, _ModelSlabs] = {}

    def join(self, pool: Pool, tree: Evictable) -> None:
        """Makes a model one of those that share memory."""
        self._models[pool] = _ModelSlabs(pool, tree)

    def reserve(self, pool: Pool, pages: int, *, cold_only: bool = False) -> bool:
        """Makes at least `pages` pages free for a model; False, with as many as there are, where it is not possible.

        With `cold_only`, only pages are evicted that have not been touched since a page of their worth was evicted.
        """
        if pool.free >= pages:
            return True
        limit = (self.clock.now, self.clock.touches) if cold_only else _UNLIMITED
        tree = self._models[pool].tree
        slab = self._cheapest_slab(pool) if pool.may_grow else None
        while pool.free < pages:
            page_worth = tree.cheapest()
            if slab is not None and (page_worth is None or slab[0] <= page_worth):
                if slab[0] > limit:
                    return False
                self._empty(*slab)
                slab = self._cheapest_slab(pool) if pool.may_grow else None
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

    def capacity(self, pool: Pool) -> int:
        """Pages that a model has when it is served alone: the others keep the slab of their scratch page."""
        arena = pool.arena
        kept = [
            other.slab_of(other.scratch) for other in self._models if isinstance(other, PagePool) and other is not pool
        ]
        # What it may not have anyway is no loss.
        lost = kept[arena.slabs - pool.share.most :]
        return pool.capacity - sum(len(arena.pages(slab, pool.layout)) for slab in lost)

    def _cheapest_slab(self, needing: Pool | None) -> tuple[Worth, _ModelSlabs, int] | None:
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
    """The slabs of one model that could be emptied."""

    def __init__(self, pool: Pool, tree: Evictable) -> None:
        self.pool = pool
        self.tree = tree
        self._slabs = WorthHeap(self._worth)

    def cheapest(self) -> tuple[Worth, int] | None:
        """The least worth and the slab that has it; None where no slab can be emptied."""
        # Only a released page can lower a slab's worth, or make a slab one that can be emptied.
        for slab in self.pool.releasing_slabs():
            self._slabs.push(slab)
        return self._slabs.least()

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
