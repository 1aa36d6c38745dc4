"""The prefix tree: finished KV pages, found again by the tokens they hold (the idea of SGLang's RadixAttention).

One node is one page. A node with fewer tokens than a page holds is a leaf; a request that goes on from it takes a copy.
Pages in the tree are never written.

What is worth keeping is decided by GreedyDual-Size (Cao and Irani, 1997): a page is worth the clock at its last touch
plus what computing it again costs a byte, and the clock stands at the worth of the last page that was evicted. So cheap
pages go before dear ones of the same age, and dear ones go as well once they have not been touched for long enough.
Pages of like worth go by least recent use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

from qpdsl.executor.engine.memory.pool import PagePool

Tokens = tuple[int, ...]
# What a page is worth, and when it was touched last: the smallest goes first.
Worth = tuple[float, int]

_FEWEST_GHOSTS = 1024


@dataclass(eq=False, slots=True)
class Node:
    """A page in the tree. `digest` hashes all tokens from the root to its end."""

    tokens: Tokens
    page: int
    parent: Node | None
    digest: int
    worth: Worth = (0.0, 0)
    queued: bool = False
    children: dict[Tokens, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Match:
    """Whole pages that hold the prefix, then the page to copy for the rest: `length` tokens in all.

    `node` is that of the last whole page, or the root.
    """

    pages: tuple[int, ...]
    partial: int | None
    length: int
    node: Node


@dataclass(slots=True)
class Clock:
    """The clock of GreedyDual-Size, and a count of touches; all trees of an engine share one."""

    now: float = 0.0
    touches: int = 0


def digests(tokens: Sequence[int], page_size: int) -> list[int]:
    """A hash of the prefix at the end of each whole page. Good for hints: equal hashes prove nothing."""
    made: list[int] = []
    digest = 0
    for start in range(0, len(tokens) - page_size + 1, page_size):
        digest = hash((digest, *tokens[start : start + page_size]))
        made.append(digest)
    return made


class PrefixTree:
    """Holds one reference to every page in it. `cost`: operations to compute a token again, for each byte of its KV.

    A sequence that holds a page of the tree holds the pages of all its ancestors: `insert` puts the tree's pages in
    place of equal ones. So nothing that a sequence holds can be lost by evicting what none holds.
    """

    def __init__(self, pool: PagePool, page_size: int, clock: Clock | None = None, cost: float = 1.0) -> None:
        self.root = Node((), 0, None, 0)
        self.evictions = 0
        self.thrashed = 0
        self.tokens = 0
        self._pool = pool
        self._page_size = page_size
        self._clock = clock or Clock()
        self._cost = cost / page_size
        self._nodes: dict[int, Node] = {}
        self._digests: dict[int, Node] = {}
        # Leaves that only the tree holds are in the heap, with a worth of their own or an older, smaller one.
        self._heap: list[tuple[Worth, Node]] = []
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        pool.on_single = self._single

    def __len__(self) -> int:
        return len(self._nodes)

    def match(self, tokens: Sequence[int], limit: int) -> Match:
        """The longest stored prefix of `tokens`, at most `limit` tokens of it. Takes no references."""
        node, pages, start = self.root, [], 0
        while start + self._page_size <= limit:
            child = node.children.get(tuple(tokens[start : start + self._page_size]))
            if child is None:
                break
            node = child
            pages.append(child.page)
            start += self._page_size
        # The rest fills no stored page whole; a stored page that it begins with can be copied.
        if node.children:
            for stop in range(min(limit, start + self._page_size), start, -1):
                leaf = node.children.get(tuple(tokens[start:stop]))
                if leaf is not None:
                    self._touch(leaf)
                    return Match(tuple(pages), leaf.page, stop, node)
        self._touch(node)
        return Match(tuple(pages), None, start, node)

    def stored(self, digests: Sequence[int]) -> int:
        """How many of the leading pages with these digests are stored. Touches nothing."""
        low, high = 0, len(digests)
        while low < high:
            middle = (low + high) // 2
            if digests[middle] in self._digests:
                low = middle + 1
            else:
                high = middle
        return low

    def insert(self, tokens: Sequence[int], pages: list[int], node: Node | None = None, start: int = 0) -> Node:
        """Stores the pages that hold `tokens`, from page `start` on, which comes after `node`; returns the last node.

        Where the same tokens are stored already, their page takes the place of the caller's in `pages`.
        """
        node = node or self.root
        for index in range(start, -(-len(tokens) // self._page_size)):
            key = tuple(tokens[index * self._page_size : (index + 1) * self._page_size])
            child = node.children.get(key)
            if child is None:
                child = self._grow(node, key, pages[index])
            elif child.page != pages[index]:
                self._pool.retain(child.page)
                self._pool.release(pages[index])
                pages[index] = child.page
            node = child
        self._touch(node)
        return node

    def cheapest(self) -> Worth | None:
        """What the page is worth that `evict` would free; None where it could free none."""
        heap = self._heap
        while heap:
            worth, node = heap[0]
            if node.parent is None or node.children or self._pool.shared(node.page):
                heappop(heap)
                node.queued = False
            elif worth != node.worth:
                heapreplace(heap, (node.worth, node))
            else:
                return worth
        return None

    def evict(self) -> bool:
        """Frees the page that is worth least; False where there is none that nobody else holds."""
        worth = self.cheapest()
        if worth is None:
            return False
        _, leaf = heappop(self._heap)
        leaf.queued = False
        self._clock.now = max(self._clock.now, worth[0])
        self._lose(leaf)
        return True

    def worth(self, page: int) -> Worth | None:
        """What a page is worth; None where it is not in the tree."""
        node = self._nodes.get(page)
        return None if node is None else node.worth

    def evict_page(self, page: int) -> None:
        """Takes a page out, and everything that builds on it."""
        found = [self._nodes[page]]
        for node in found:
            found.extend(node.children.values())
        for node in reversed(found):
            self._lose(node)

    def forget(self, page: int) -> bool:
        """Takes a page out that nothing in the tree builds on; False where it is not in the tree, or built on."""
        node = self._nodes.get(page)
        if node is None or node.children:
            return False
        self._remove(node)
        return True

    def missed(self, digests: Sequence[int]) -> int:
        """Counts, as thrashed, the pages with these digests that were evicted not long ago; returns how many."""
        count = 0
        for digest in digests:
            if self._ghosts.pop(digest, self) is self:
                break
            count += 1
        self.thrashed += count
        return count

    def pages(self) -> Iterator[int]:
        return iter(self._nodes)

    def _grow(self, parent: Node, tokens: Tokens, page: int) -> Node:
        node = Node(tokens, page, parent, hash((parent.digest, *tokens)))
        parent.children[tokens] = node
        self._nodes[page] = node
        self._digests[node.digest] = node
        self._pool.retain(page)
        self.tokens += len(tokens)
        return node

    def _lose(self, leaf: Node) -> None:
        self.evictions += 1
        self._ghosts[leaf.digest] = None
        if len(self._ghosts) > max(_FEWEST_GHOSTS, 2 * self._pool.capacity):
            self._ghosts.popitem(last=False)
        self._remove(leaf)

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None and not leaf.children
        del parent.children[leaf.tokens]
        del self._nodes[leaf.page]
        self._digests.pop(leaf.digest, None)
        leaf.parent = None
        self.tokens -= len(leaf.tokens)
        self._pool.release(leaf.page)
        if parent is not self.root and not self._pool.shared(parent.page):
            self._single(parent.page)

    def _single(self, page: int) -> None:
        """Queues a page for eviction that none but the tree may hold now."""
        node = self._nodes.get(page)
        if node is None or node.queued or node.children:
            return
        if len(self._heap) > 2 * len(self._nodes) + 64:
            self._heap = [entry for entry in self._heap if entry[1].parent is not None]
            self._heap.sort()
        node.queued = True
        heappush(self._heap, (node.worth, node))

    def _touch(self, node: Node | None) -> None:
        """From the node up, so that none is worth less than what builds on it."""
        clock = self._clock
        while node is not None and node is not self.root:
            clock.touches += 1
            node.worth = (clock.now + self._cost * len(node.tokens), clock.touches)
            node = node.parent
