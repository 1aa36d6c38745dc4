"""AB-MCTS-A: wider or deeper, by Thompson sampling.

Inoue et al., "Wider or Deeper? Scaling LLM Inference-Time Compute with Adaptive Branching Tree Search" (2025), with
node aggregation, as treequest's `ABMCTSA` does it for one kind of action: at each node a draw from what new children
were worth is compared with one from what going on below the children was worth; then the children compete likewise.
What is worth how much is a Gaussian of unknown mean and variance, with the normal-inverse-χ² prior of that code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from random import Random

from qpdsl.executor.runtime.tree_search.search_tree import SearchNode

# The prior: its mean, how many values the mean and the variance weigh as much as, and the variance.
_MEAN, _WEIGHT, _FREEDOM, _VARIANCE = 0.0, 1.0, 1.0, 0.1
# How often a row is expanded that this makes no row of.
_FRUITLESS = 8


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
