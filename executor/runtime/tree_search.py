"""The `search` operator: a tree of rows below each row that comes in, grown by one expansion after another.

`search` asks a policy which rows to expand, runs the body on each, side by side as far as the program says, and tells
the policy the values of their children. A search depends on values alone, which are rounded as scores are, and on
random numbers of its own, keyed as noise is; nothing depends on which expansion is done first. A node is expanded under
a path of its own: its row's, and the number of the expansion there. So what is drawn below a row depends on that row,
not on when the search came to it.

`Puct` takes the leaf where the mean of the values, and how little was tried, together are greatest: Silver et al.,
"Mastering the game of Go without human knowledge" (2017), with all children of a node as likely. Rows whose expansion
is under way count as visits without a value, so that several can be expanded side by side (Liu et al., "Watch the
Unobserved", 2020).

`AdaptiveBranching` is AB-MCTS-A, wider or deeper, by Thompson sampling: Inoue et al., "Wider or Deeper? Scaling LLM
Inference-Time Compute with Adaptive Branching Tree Search" (2025), with node aggregation, as treequest's `ABMCTSA` does
it for one kind of action. At each node a draw from what new children were worth is compared with one from what going on
below the children was worth; then the children compete likewise. What is worth how much is a Gaussian of unknown mean
and variance, with the normal-inverse-χ² prior of that code.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import sqrt
from random import Random
from typing import Protocol

from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.executor.runtime.instance.row_tasks import together
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp

RunChain = Callable[[tuple[PhysicalOp, ...], Candidates, Instance], Awaitable[Candidates]]
# The weight of what was tried little where the program does not say.
_C = 1.4
# The prior: its mean, how many values the mean and the variance weigh as much as, and the variance.
_MEAN, _WEIGHT, _FREEDOM, _VARIANCE = 0.0, 1.0, 1.0, 0.1
# How often a row is expanded that this makes no row of.
_FRUITLESS = 8


@dataclass(slots=True)
class _Tree:
    """A search below one row, with the expansions that are left to it."""

    root: SearchNode
    policy: SearchPolicy
    left: int


async def search(node: PhysicalOp, rows: Candidates, instance: Instance, run: RunChain) -> Candidates:
    """The rows that the searches below each row come to, those of earlier rows first. `run` runs the body.

    Raises RowError where an option is out of range.
    """
    op = node.op
    assert isinstance(op, ops.Search)
    simulations = instance.whole("simulations", op.simulations, rows)
    at_once = 1 if op.per_round is None else instance.whole("per_round", op.per_round, rows)
    c = instance.number("c", op.c, rows)
    trees = [
        _Tree(
            SearchNode(row, open=op.turns or not row.generated.finished),
            Puct(_C if c is None else c) if op.method == "puct" else AdaptiveBranching(_chance(op, row, instance)),
            simulations,
        )
        for row in rows
    ]
    while chosen := [pair for tree in trees for pair in _chosen(tree, at_once)]:
        made = await together(_children(node, parent, number, instance, run) for _, parent, number in chosen)
        instance.usage.counts["expansions"] += len(chosen)
        for (tree, parent, _), children in zip(chosen, made, strict=True):
            added = [
                parent.add(row, _value(op, row, instance), can_go_on=op.turns or not row.generated.finished)
                for row in children
            ]
            tree.policy.expanded(parent, added)
    return tuple(row for tree in trees for row in _found(op, tree.root, node.columns))


def _chosen(tree: _Tree, at_once: int) -> list[tuple[_Tree, SearchNode, int]]:
    """The nodes to expand next, each with the number of the expansion there."""
    chosen: list[tuple[_Tree, SearchNode, int]] = []
    while tree.left and len(chosen) < at_once and (parent := tree.policy.choose(tree.root)) is not None:
        chosen.append((tree, parent, parent.expansions - 1))
        tree.left -= 1
    return chosen


async def _children(node: PhysicalOp, parent: SearchNode, number: int, instance: Instance, run: RunChain) -> Candidates:
    row = replace(parent.row, path=(*parent.row.path, number))
    # Scores that another operator reads again are kept for one chain of rows.
    own = replace(instance, rounds=(*instance.rounds, parent.depth), ahead=None, steps={})
    return await run(node.body, (row,), own)


def _value(op: ops.Search, row: Row, instance: Instance) -> float | None:
    (value,) = instance.values(op.by, (row,))
    return round(float(value), SCORE_DIGITS) if isinstance(value, (int, float)) else None


def _found(op: ops.Search, root: SearchNode, columns: Iterable[str]) -> list[Row]:
    """The leaves, or all rows that were made where each is an answer; finished ones first."""
    absent = dict.fromkeys(columns)
    nodes = [node for node in root.below() if op.turns or not node.expansions]
    if not root.expansions:
        nodes = [root]
    nodes.sort(key=lambda node: not node.row.generated.finished)
    return [
        replace(node.row, columns={**absent, **node.row.columns, "visits": node.visits, "value": _rounded(node.mean)})
        for node in nodes
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, SCORE_DIGITS)


def _chance(op: ops.Search, row: Row, instance: Instance) -> Random:
    """The random numbers of a search: they depend on what noise depends on."""
    key = instance.chance(op.stage, row.context, row.path)
    return Random(blake2b(key.to_bytes(8, "little"), digest_size=16).digest())


@dataclass(slots=True, eq=False)
class SearchNode:
    """A row in the tree. `own` is its value, None where it has none; the root's is not asked for.

    `visits` counts the values of the row and of all below it, and `total` is their sum. `expansions` counts those that
    were begun. `open`: it can be expanded.
    """

    row: Row
    parent: SearchNode | None = None
    own: float | None = None
    open: bool = True
    expansions: int = 0
    children: list[SearchNode] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0

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

    def add(self, row: Row, value: float | None, *, can_go_on: bool) -> SearchNode:
        """A child with a value, which is carried up to the root."""
        child = SearchNode(row, self, value, open=can_go_on and value is not None)
        self.children.append(child)
        if value is not None:
            for node in child.line():
                node.visits += 1
                node.total += value
        return child


class SearchPolicy(Protocol):
    """Which node of a tree is expanded next."""

    def choose(self, root: SearchNode) -> SearchNode | None:
        """The node to expand; its expansion counts as begun. None where there is none now."""

    def expanded(self, node: SearchNode, children: list[SearchNode]) -> None:
        """Takes note of the children that an expansion of a node made."""


class Puct:
    """Each node is expanded once. `c` weighs what was tried little, in the unit of the values."""

    def __init__(self, c: float) -> None:
        self._c = c
        # At or below a node: expansions under way, and rows that can be expanded.
        self._under_way: dict[SearchNode, int] = {}
        self._ready: dict[SearchNode, int] = {}

    def choose(self, root: SearchNode) -> SearchNode | None:
        if not self._count_ready(root):
            return None
        leaf = root
        while leaf.children:
            ready = [child for child in leaf.children if self._count_ready(child)]
            worth = [self._worth(child, leaf) for child in ready]
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

    def _worth(self, child: SearchNode, parent: SearchNode) -> float:
        tried = child.visits + self._under_way.get(child, 0)
        tries = parent.visits + self._under_way.get(parent, 0)
        return (child.mean or 0.0) + self._c / len(parent.children) * sqrt(tries) / (1 + tried)

    def _count_ready(self, node: SearchNode) -> int:
        """How many rows at or below a node can be expanded, and are not being."""
        return self._ready.get(node, int(node.open))


@dataclass(slots=True)
class _Worth:
    """The values of an option: a draw is one from the posterior of their mean (Murphy 2023, section 3.4.3.3)."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.squares += value * value

    def draw(self, chance: Random) -> float:
        count = self.count
        mean = self.total / count if count else 0.0
        weight, freedom = _WEIGHT + count, _FREEDOM + count
        within = max(self.squares - count * mean * mean, 0.0)
        between = count * _WEIGHT * (_MEAN - mean) ** 2 / weight
        # The variance is inverse χ² of this freedom, scaled by this over the freedom.
        scaled = _FREEDOM * _VARIANCE + within + between
        variance = scaled / 2 / chance.gammavariate(freedom / 2, 1.0)
        return chance.gauss((_WEIGHT * _MEAN + count * mean) / weight, sqrt(variance / weight))


@dataclass(slots=True)
class _Options:
    """What is known at a node: of new children, of going on, and of each child."""

    wider: _Worth = field(default_factory=_Worth)
    deeper: _Worth = field(default_factory=_Worth)
    children: dict[SearchNode, _Worth] = field(default_factory=dict)


class AdaptiveBranching:
    """Each node can be expanded many times. `chance` is the search's own."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._options: dict[SearchNode, _Options] = {}

    def choose(self, root: SearchNode) -> SearchNode | None:
        node = root
        while node.children:
            options = self._options[node]
            wider, deeper = options.wider.draw(self._chance), options.deeper.draw(self._chance)
            going_on = [child for child in node.children if child.open]
            if wider >= deeper or not going_on:
                break
            drawn = [options.children[child].draw(self._chance) for child in going_on]
            node = going_on[drawn.index(max(drawn))]
        if not node.open:
            return None
        node.expansions += 1
        return node

    def expanded(self, node: SearchNode, children: list[SearchNode]) -> None:
        own = self._options.setdefault(node, _Options())
        if not node.children and node.expansions >= _FRUITLESS:
            node.open = False
        for child in children:
            if child.own is None:
                continue
            own.children[child] = _Worth()
            own.children[child].add(child.own)
            own.wider.add(child.own)
            for below in node.line():
                if below.parent is not None:
                    options = self._options[below.parent]
                    options.children[below].add(child.own)
                    options.deeper.add(child.own)
