"""How long a model's decode steps take, by their rows, as measured while it serves."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from itertools import accumulate
from statistics import median_low

# Steps of about as many rows, the latest ones, whose median counts.
_KEPT = 5
# After so many steps a measurement is old.
_OLD = 300


class StepTimes:
    """Seconds of a step, between those that were measured in proportion; none is shorter than one with fewer rows."""

    def __init__(self) -> None:
        self._measured: dict[int, deque[float]] = {}
        self._at: dict[int, int] = {}
        self._steps = 0
        self._rows: list[int] = []
        self._seconds: list[float] | None = None

    def measured(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        rows = _about(rows)
        self._steps += 1
        self._at[rows] = self._steps
        self._measured.setdefault(rows, deque(maxlen=_KEPT)).append(seconds)
        self._seconds = None

    def knows(self, rows: int) -> bool:
        """Whether steps of about so many rows were measured, more than once and lately."""
        rows = _about(rows)
        return len(self._measured.get(rows, ())) > 1 and self._steps - self._at[rows] < _OLD

    def seconds(self, rows: int) -> float:
        """Of a step of so many rows; 0 where none was measured.

        Beyond the largest that was measured it grows with the square root of the rows: it is tried, and then known.
        """
        if not self._measured:
            return 0.0
        if self._seconds is None:
            self._rows = sorted(self._measured)
            medians = [median_low(self._measured[known]) for known in self._rows]
            self._seconds = [*accumulate(medians, max)]
        known, seconds = self._rows, self._seconds
        after = bisect_left(known, rows)
        if after == len(known):
            return seconds[-1] * math.sqrt(rows / known[-1])
        if known[after] == rows or after == 0:
            return seconds[after]
        share = (rows - known[after - 1]) / (known[after] - known[after - 1])
        return seconds[after - 1] + share * (seconds[after] - seconds[after - 1])


def _about(rows: int) -> int:
    """Up to 16 rows the number itself, from there on its three highest binary digits, so that few kinds are kept."""
    if rows <= 16:
        return rows
    low = max(0, rows.bit_length() - 4)
    return rows >> low << low
