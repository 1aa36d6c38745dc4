"""The prefix tree: finished KV pages, found again by the tokens they hold (the idea of SGLang's RadixAttention).

One node is one page. A node with fewer tokens than a page holds is a leaf; a request that goes on from it takes a copy.
Pages in the tree are never written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from qpdsl.executor.engine.pool import PagePool

Tokens = tuple[int, ...]


@dataclass(eq=False, slots=True)
class _Node:
    tokens: Tokens
    page: int
    parent: _Node | None
    children: dict[Tokens, _Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Match:
    """Whole pages that hold the prefix, then the page to copy for the rest: `length` tokens in all."""

    pages: tuple[int, ...]
    partial: int | None
    length: int


class PrefixTree:
    """Holds one reference to every page in it, and gives pages back to the pool by least recent use."""

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self._pool = pool
        self._page_size = page_size
        self._root = _Node((), 0, None)
        # Oldest first. A touch moves a node and then its ancestors to the end, so no node is older than a descendant.
        self._recency: OrderedDict[_Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recency)

    def match(self, tokens: Sequence[int], limit: int) -> Match:
        """The longest stored prefix of `tokens`, at most `limit` tokens of it. Takes no references."""
        node, pages, start = self._root, [], 0
        while start + self._page_size <= limit:
            child = node.children.get(tuple(tokens[start : start + self._page_size]))
            if child is None:
                break
            node = child
            pages.append(child.page)
            start += self._page_size
        # The rest fills no stored page whole; a stored page that it begins with can be copied.
        end = min(limit, start + self._page_size)
        for stop in range(end, start, -1):
            leaf = node.children.get(tuple(tokens[start:stop]))
            if leaf is not None:
                self._touch(leaf)
                return Match(tuple(pages), leaf.page, stop)
        self._touch(node)
        return Match(tuple(pages), None, start)

    def insert(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Stores the pages that hold `tokens`; where the same tokens are stored already, those pages stay."""
        node = self._root
        for index, start in enumerate(range(0, len(tokens), self._page_size)):
            key = tuple(tokens[start : start + self._page_size])
            child = node.children.get(key)
            if child is None:
                child = _Node(key, pages[index], node)
                node.children[key] = child
                self._pool.retain(child.page)
            node = child
        self._touch(node)

    def evict(self, pages: int) -> int:
        """Frees up to `pages` pages that nobody else holds, least recently used first; returns how many."""
        freed = 0
        for node in list(self._recency):
            if freed == pages:
                break
            if node.children or self._pool.shared(node.page):
                continue
            self._remove(node)
            freed += 1
        return freed

    def forget(self, page: int) -> bool:
        """Takes a page out that nothing in the tree builds on; False where it is not in the tree, or built on."""
        for node in self._recency:
            if node.page == page and not node.children:
                self._remove(node)
                return True
        return False

    def pages(self) -> Iterator[int]:
        return (node.page for node in self._recency)

    def _remove(self, leaf: _Node) -> None:
        assert leaf.parent is not None
        del leaf.parent.children[leaf.tokens]
        del self._recency[leaf]
        self._pool.release(leaf.page)

    def _touch(self, node: _Node | None) -> None:
        while node is not None and node is not self._root:
            self._recency[node] = None
            self._recency.move_to_end(node)
            node = node.parent
