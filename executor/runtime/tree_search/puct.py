"""PUCT: the leaf where what was found, and how little was tried, together are greatest.

Silver et al., "Mastering the game of Go without human knowledge" (2017), with all children of a node as likely. Rows
whose expansion is under way count as visits without a value, so that several can be expanded side by side (Liu et al.,
"Watch the Unobserved", 2020).
"""

from __future__ import annotations

from math import sqrt

from qpdsl.executor.runtime.tree_search.nodes import SearchNode
from qpdsl.grammar.words import Backup


class Puct:
    """Each node is expanded once. `c` weighs what was tried little, in the unit of the values.

    `backup`: a node is worth the mean of the values at and below it, or the greatest of them.
    """

    def __init__(self, c: float, backup: Backup = "mean") -> None:
        self._c = c
        self._backup = backup
        # At or below a node: expansions under way, and rows that can be expanded.
        self._under_way: dict[SearchNode, int] = {}
        self._ready: dict[SearchNode, int] = {}

    def choose(self, root: SearchNode) -> SearchNode | None:
        if not self._count_ready(root):
            return None
        leaf = root
        while leaf.children:
            ready = [child for child in leaf.children if self._count_ready(child)]
            worth = [self.worth(child, leaf) for child in ready]
            leaf = ready[worth.index(max(worth))]
        leaf.expansions += 1
        for node in leaf.line():
            self._under_way[node] = self._under_way.get(node, 0) + 1
            self._ready[node] = self._count_ready(node) - 1
        return leaf

    def expanded(self, node: SearchNode, children: list[SearchNode]) -> None:
        more = sum(child.open for child in children)
        for above in node.line():
            self._under_way[above] -= 1
            self._ready[above] += more

    def worth(self, child: SearchNode, parent: SearchNode) -> float:
        """What a descent goes by at a node."""
        tried = child.visits + self._under_way.get(child, 0)
        tries = parent.visits + self._under_way.get(parent, 0)
        found = child.mean if self._backup == "mean" else child.greatest
        return (found or 0.0) + self._c / len(parent.children) * sqrt(tries) / (1 + tried)

    def _count_ready(self, node: SearchNode) -> int:
        """How many rows at or below a node can be expanded, and are not being."""
        return self._ready.get(node, int(node.open))
