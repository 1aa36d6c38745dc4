"""AB-MCTS-M: new children and those there are compete under one hierarchical model of what they are worth.

Inoue et al., "Wider or Deeper?" (2025), with the priors and the pruning of treequest's `ABMCTSM`: a value below child j
is N(α_j, σ_y), α_j is N(μ, σ_α), μ is N(0.5, 0.2), σ_α and σ_y are half-normal with scales 0.2 and 0.3. That code draws
from the posterior by NUTS, which no other machine repeats. Here α_j is integrated out exactly, and (μ, σ_α, σ_y) lie on
a grid, so that a draw is one uniform number, then Gaussian ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import sqrt
from random import Random

import numpy as np
import numpy.typing as npt

from qpdsl.executor.runtime.tree_search.ab_mcts import begun, close_fruitless
from qpdsl.executor.runtime.tree_search.nodes import SearchNode

_MEAN, _MEAN_SD, _BETWEEN, _WITHIN = 0.5, 0.2, 0.2, 0.3
# Four standard deviations each way hold all but 6e-5 of each prior.
_REACH = 4.0
_MEANS, _SCALES = 41, 24
# A child is pruned that has so many values, of which this share is the same in so many digits.
_MANY, _SHARE, _DIGITS = 4, 0.75, 2

_Array = npt.NDArray[np.float64]


def _centres(scale: float) -> _Array:
    return (np.arange(_SCALES, dtype=np.float64) + 0.5) * (_REACH * scale / _SCALES)


_MU: _Array = np.linspace(_MEAN - _REACH * _MEAN_SD, _MEAN + _REACH * _MEAN_SD, _MEANS)
_SIGMA_BETWEEN, _SIGMA_WITHIN = _centres(_BETWEEN), _centres(_WITHIN)
_VAR_BETWEEN, _VAR_WITHIN = _SIGMA_BETWEEN[:, None] ** 2, _SIGMA_WITHIN[None, :] ** 2
_PRIOR: _Array = (
    -((_MU - _MEAN) ** 2)[:, None, None] / (2 * _MEAN_SD**2)
    - _VAR_BETWEEN / (2 * _BETWEEN**2)
    - _VAR_WITHIN / (2 * _WITHIN**2)
)


@dataclass(slots=True)
class ChildValues:
    """The values at and below a child."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    rounded: Counter[float] = field(default_factory=Counter)

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.squares += value * value
        self.rounded[round(value, _DIGITS)] += 1

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def spread(self) -> float:
        """The sum of the squared distances from the mean."""
        return max(self.squares - self.count * self.mean**2, 0.0)

    @property
    def is_pruned(self) -> bool:
        return self.count >= _MANY and max(self.rounded.values()) >= _SHARE * self.count


def log_weights(children: list[ChildValues]) -> _Array:
    """The logarithm of the posterior of (μ, σ_α, σ_y) on the grid, up to a constant."""
    # What a child adds depends on μ by a square alone: least + slope μ + curve μ².
    least, slope, curve = (np.zeros((_SCALES, _SCALES)) for _ in range(3))
    for child in children:
        variance = _VAR_BETWEEN + _VAR_WITHIN / child.count
        least -= (child.count - 1) / 2 * np.log(_VAR_WITHIN) + child.spread / (2 * _VAR_WITHIN)
        least -= np.log(variance) / 2 + child.mean**2 / (2 * variance)
        slope += child.mean / variance
        curve -= 1 / (2 * variance)
    mu = _MU[:, None, None]
    return _PRIOR + least + mu * slope + mu * mu * curve


def draws(children: list[ChildValues], chance: Random) -> tuple[float, list[float]]:
    """A draw from the posterior predictive of a value of a new child, and of one below each child there is."""
    logs = log_weights(children)
    ends = np.cumsum(np.exp(logs - logs.max()))
    place = min(int(np.searchsorted(ends, chance.random() * ends[-1], side="right")), ends.size - 1)
    at_mean, at_between, at_within = np.unravel_index(place, logs.shape)
    mu, between, within = float(_MU[at_mean]), float(_SIGMA_BETWEEN[at_between]), float(_SIGMA_WITHIN[at_within])
    new = chance.gauss(chance.gauss(mu, between), within)
    known = []
    for child in children:
        precision = 1 / between**2 + child.count / within**2
        mean = (mu / between**2 + child.total / within**2) / precision
        known.append(chance.gauss(chance.gauss(mean, 1 / sqrt(precision)), within))
    return new, known


class HierarchicalBranching:
    """Each node can be expanded many times. `chance` is the search's own."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._values: dict[SearchNode, ChildValues] = {}

    def choose(self, root: SearchNode) -> SearchNode | None:
        node = root
        while (child := self._child(node)) is not None:
            node = child
        return begun(node)

    def _child(self, node: SearchNode) -> SearchNode | None:
        """The child to go down to; None for a new one."""
        valued = [child for child in node.children if child in self._values]
        if not any(child.open for child in valued):
            return None
        new, drawn = draws([self._values[child] for child in valued], self._chance)
        going_on = [(worth, child) for worth, child in zip(drawn, valued, strict=True) if child.open]
        best = max(worth for worth, _ in going_on)
        if new >= best:
            return None
        kept = [(worth, child) for worth, child in going_on if not self._values[child].is_pruned]
        return max(kept, key=lambda pair: pair[0])[1] if kept else None

    def expanded(self, node: SearchNode, children: list[SearchNode]) -> None:
        close_fruitless(node)
        for child in children:
            if child.own is None:
                continue
            for below in child.line():
                if below.parent is not None:
                    self._values.setdefault(below, ChildValues()).add(child.own)
