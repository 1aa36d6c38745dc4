"""The tree of a search, and the protocol of what decides where it grows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from qpdsl.executor.runtime.instance.candidates import Row


@dataclass(slots=True, eq=False)
class SearchNode:
    """A row in the tree. `own` is its value, None where it has none; the root's is not asked for.

    `visits` counts the values of the row and of all below it, `total` is their sum and `greatest` the greatest of them.
    `expansions` counts those that were begun. `open`: it can be expanded. `ended` is the finished row that the row is,
    or was carried on to; None where there is none. `arm` made it, where a search chooses among arms.
    """

    row: Row
    parent: SearchNode | None = None
    own: float | None = None
    open: bool = True
    expansions: int = 0
    children: list[SearchNode] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0
    greatest: float | None = None
    ended: Row | None = None
    arm: int | None = None

    @property
    def mean(self) -> float | None:
        """The value that is carried up to the node."""
        return self.total / self.visits if self.visits else None

    @property
    def depth(self) -> int:
        return len(list(self.line())) - 1

    def line(self) -> Iterator[SearchNode]:
        """The node and those above it, up to the root."""
        node: SearchNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def below(self) -> Iterator[SearchNode]:
        """All nodes below, each before those below it, in the order of their paths."""
        pending = self.children[::-1]
        while pending:
            node = pending.pop()
            yield node
            pending += node.children[::-1]

    def robust(self) -> SearchNode | None:
        """The child with the most visits, of equal ones that of the greater mean, then the earlier one.

        None where no child has a value. (Chaslot et al., "Progressive Strategies for Monte-Carlo Tree Search", 2008.)
        """
        valued = [child for child in self.children if child.mean is not None]
        return max(valued, key=lambda child: (child.visits, child.mean or 0.0), default=None)

    def add(self, row: Row, value: float | None, *, can_go_on: bool) -> SearchNode:
        """A child with a value, which is carried up to the root."""
        child = SearchNode(row, self, value, open=can_go_on and value is not None)
        self.children.append(child)
        if value is not None:
            for node in child.line():
                node.visits += 1
                node.total += value
                node.greatest = value if node.greatest is None else max(node.greatest, value)
        return child


class SearchPolicy(Protocol):
    """Which node of a tree is expanded next."""

    def choose(self, root: SearchNode) -> SearchNode | None:
        """The node to expand; its expansion counts as begun. None where there is none now."""

    def expanded(self, node: SearchNode, children: list[SearchNode]) -> None:
        """Takes note of the children that an expansion of a node made."""
