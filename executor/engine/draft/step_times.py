"""How long a model's decode steps take, by their rows, as measured while it serves."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

# Steps of about as many rows, the latest ones, of which the quickest counts: other work on the machine only adds time.
_KEPT, _ENOUGH = 5, 3
# After so many steps a measurement is old.
_OLD = 64

_Floats = np.ndarray[Any, np.dtype[np.float64]]


class StepTimes:
    """Seconds of a step, between those that were measured in proportion; none is longer than one with more rows."""

    def __init__(self) -> None:
        self._measured: dict[int, deque[float]] = {}
        self._quickest: dict[int, float] = {}
        self._at: dict[int, int] = {}
        self._steps = 0
        self._known: tuple[_Floats, _Floats] | None = None

    def measured(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        rows = _about(rows)
        self._steps += 1
        self._at[rows] = self._steps
        kept = self._measured.setdefault(rows, deque(maxlen=_KEPT))
        kept.append(seconds)
        quickest = min(kept)
        if quickest != self._quickest.get(rows):
            self._quickest[rows] = quickest
            self._known = None

    def knows(self, rows: int) -> bool:
        """Whether steps of about so many rows were measured, often enough and lately."""
        rows = _about(rows)
        return len(self._measured.get(rows, ())) >= _ENOUGH and self._steps - self._at[rows] < _OLD

    def seconds(self, rows: int) -> float:
        """Of a step of so many rows; 0 where none was measured."""
        return float(self.of(np.array([rows]))[0])

    def of(self, rows: np.ndarray[Any, Any]) -> _Floats:
        """The same for several steps, float64 [N].

        Beyond the largest that was measured it grows with the square root of the rows: it is tried, and then known.
        """
        if not self._measured:
            return np.zeros(len(rows))
        if self._known is None:
            known = sorted(self._quickest)
            seconds = np.array([self._quickest[count] for count in known])
            self._known = np.array(known, float), np.minimum.accumulate(seconds[::-1])[::-1]
        known_rows, known_seconds = self._known
        beyond: _Floats = np.sqrt(np.maximum(rows / known_rows[-1], 1.0))
        between: _Floats = np.interp(rows, known_rows, known_seconds)
        return between * beyond


def _about(rows: int) -> int:
    """Up to 16 rows the number itself, from there on its four highest binary digits, so that few kinds are kept."""
    if rows <= 16:
        return rows
    low = max(0, rows.bit_length() - 4)
    return rows >> low << low
