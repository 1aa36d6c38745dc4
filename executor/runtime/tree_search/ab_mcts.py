"""AB-MCTS-A, wider or deeper, by Thompson sampling; and which of several arms makes the next child.

Inoue et al., "Wider or Deeper? Scaling LLM Inference-Time Compute with Adaptive Branching Tree Search" (2025), with
node aggregation, as treequest's `ABMCTSA` does it. At each node a draw from what new children were worth is compared
with one from what going on below the children was worth; then the children compete likewise. What is worth how much is
a Gaussian of unknown mean and variance under a normal-inverse-χ² prior, or a share under Jeffreys' prior, with the
numbers of that code.

Where several models can make a child (section 3.4, multi-LLM AB-MCTS), one is drawn by all values in the tree that it
made: by Thompson sampling, or by UCB1 (Auer et al., 2002), as that code's `multiarm_bandit_thompson` and `_ucb`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import log, sqrt
from random import Random
from typing import Protocol

from qpdsl.executor.runtime.tree_search.nodes import SearchNode
from qpdsl.grammar.words import ArmChoice

# The Gaussian's prior: its mean, how many values the mean and the variance weigh as much as, and the variance.
_MEAN, _WEIGHT, _FREEDOM, _VARIANCE = 0.0, 1.0, 1.0, 0.1
# Jeffreys' prior of a share.
_JEFFREYS = 0.5
# How often a row is expanded that this makes no row of.
FRUITLESS = 8


class Worth(Protocol):
    """What is known of what an option is worth."""

    def add(self, value: float) -> None: ...

    def draw(self, chance: Random) -> float:
        """One from the posterior."""


@dataclass(slots=True)
class GaussianWorth:
    """The values of an option: a draw is one from the posterior of their mean (Murphy 2023, section 3.4.3.3)."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.squares += value * value

    @property
    def posterior(self) -> tuple[float, float, float, float]:
        """The mean, the weights of mean and variance, and the variance."""
        count = self.count
        mean = self.total / count if count else 0.0
        weight, freedom = _WEIGHT + count, _FREEDOM + count
        within = max(self.squares - count * mean * mean, 0.0)
        between = count * _WEIGHT * (_MEAN - mean) ** 2 / weight
        variance = (_FREEDOM * _VARIANCE + within + between) / freedom
        return (_WEIGHT * _MEAN + count * mean) / weight, weight, freedom, variance

    def draw(self, chance: Random) -> float:
        mean, weight, freedom, scale = self.posterior
        variance = freedom * scale / 2 / chance.gammavariate(freedom / 2, 1.0)
        return chance.gauss(mean, sqrt(variance / weight))


@dataclass(slots=True)
class BetaWorth:
    """Values from 0 to 1, as parts of a success: a draw is one from the posterior of their share."""

    right: float = _JEFFREYS
    wrong: float = _JEFFREYS

    def add(self, value: float) -> None:
        self.right += value
        self.wrong += 1 - value

    def draw(self, chance: Random) -> float:
        return chance.betavariate(self.right, self.wrong)


NewWorth = Callable[[], Worth]


@dataclass(slots=True)
class _Options:
    """What is known at a node: of new children, of going on, and of each child."""

    wider: Worth
    deeper: Worth
    children: dict[SearchNode, Worth] = field(default_factory=dict)


class AdaptiveBranching:
    """Each node can be expanded many times. `chance` is the search's own."""

    def __init__(self, chance: Random, worth: NewWorth = GaussianWorth) -> None:
        self._chance = chance
        self._worth = worth
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
        return begun(node)

    def expanded(self, node: SearchNode, children: list[SearchNode]) -> None:
        own = self._options.setdefault(node, _Options(self._worth(), self._worth()))
        close_fruitless(node)
        for child in children:
            if child.own is None:
                continue
            own.children[child] = self._worth()
            own.children[child].add(child.own)
            own.wider.add(child.own)
            for below in node.line():
                if below.parent is not None:
                    options = self._options[below.parent]
                    options.children[below].add(child.own)
                    options.deeper.add(child.own)


def begun(node: SearchNode) -> SearchNode | None:
    """The node with one expansion more; None where it can not be expanded."""
    if not node.open:
        return None
    node.expansions += 1
    return node


def close_fruitless(node: SearchNode) -> None:
    """A node that nothing comes of is expanded no more."""
    if not node.children and node.expansions >= FRUITLESS:
        node.open = False


class ArmBandit:
    """Which of several arms makes the next child, by the values of all that each has made in the tree."""

    def __init__(self, count: int, by: ArmChoice, chance: Random, worth: NewWorth = GaussianWorth) -> None:
        self._by = by
        self._chance = chance
        self._worths = [worth() for _ in range(count)]
        self._tried, self._totals = [0] * count, [0.0] * count

    def choose(self) -> int:
        """The arm, of equal ones the first; it counts as tried from now on."""
        if self._by == "thompson":
            drawn = [worth.draw(self._chance) for worth in self._worths]
        else:
            drawn = [self.bound(arm) for arm in range(len(self._tried))]
        arm = drawn.index(max(drawn))
        self._tried[arm] += 1
        return arm

    def bound(self, arm: int) -> float:
        """The upper confidence bound of UCB1; infinite for an arm that was never tried."""
        tried = self._tried[arm]
        return self._totals[arm] / tried + sqrt(2 * log(sum(self._tried)) / tried) if tried else float("inf")

    def add(self, arm: int, values: list[float]) -> None:
        """What the children were worth that one expansion by an arm made, which counts as tried once for it."""
        for value in values:
            self._worths[arm].add(value)
        self._totals[arm] += sum(values) / len(values) if values else 0.0
