"""Bins of support: rows of like certainty, over which figures are averaged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qpdsl.budgets.observations import Floats, Table
from qpdsl.budgets.way_cascade import Bools, Numbers

# A bin has at least so many rows, but for equal ones, and there are at most so many bins.
LEAST_ROWS = 15
MOST_BINS = 24
# The weights of a bin's neighbours and of itself in its average.
_SMOOTH = (0.25, 0.5, 0.25)


@dataclass(frozen=True, eq=False)
class SupportBins:
    """`cuts` ascend; a row with support of at least the first k of them is in bin k. `places`: each row's bin."""

    cuts: tuple[float, ...]
    places: Numbers

    @classmethod
    def of(cls, support: Floats) -> SupportBins:
        """Bins of as many rows each. Equal support is never told apart, so that a bin may have more."""
        count = min(len(support) // LEAST_ROWS, MOST_BINS)
        ordered = np.sort(support)
        bounds = {float(ordered[len(ordered) * number // count]) for number in range(1, count)} - {float(ordered[0])}
        cuts = tuple(sorted(cut_below(bound, ordered) for bound in bounds))
        return cls(cuts, np.searchsorted(np.asarray(cuts, dtype=np.float64), support, side="right").astype(np.int64))

    def averages(self, values: Table, counted: Bools) -> Table:
        """float64 [bins, columns]: means over the counted rows of each bin, averaged with those of its neighbours.

        A bin with too few of them has the means over all rows.
        """
        few, means = self._smoothed(values, counted)
        if few.any():
            means[few] = self._smoothed(values, np.ones_like(counted))[1][few]
        return means

    def _smoothed(self, values: Table, counted: Bools) -> tuple[Bools, Table]:
        bins = len(self.cuts) + 1
        sums = np.zeros((bins, values.shape[1]))
        np.add.at(sums, self.places[counted], values[counted])
        rows = np.bincount(self.places[counted], minlength=bins).astype(np.float64)
        weights = _with_neighbours(rows[:, None])
        return weights[:, 0] < LEAST_ROWS / 2, _with_neighbours(sums) / np.maximum(weights, 1e-12)


def cut_below(bound: float, ordered: Floats) -> float:
    """A cut that tells `bound` from the next lower one of the ascending values, half-way between the two."""
    place = int(np.searchsorted(ordered, bound, side="left"))
    lower = float(ordered[place - 1]) if place else bound
    return (lower + bound) / 2 if np.isfinite(lower) else bound


def _with_neighbours(values: Table) -> Table:
    before, own, after = _SMOOTH
    smoothed = own * values
    smoothed[1:] += before * values[:-1]
    smoothed[:-1] += after * values[1:]
    return smoothed
