"""The Pareto front: what nothing else beats at its cost."""

from __future__ import annotations

from collections.abc import Sequence


def on_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Whether each point of (cost, gain) is on the front: none has more gain at its cost or less, or its gain for less.

    Points that are equal are on it together.
    """
    order = sorted(range(len(points)), key=lambda number: (points[number][0], -points[number][1]))
    found = [False] * len(points)
    best: tuple[float, float] | None = None
    for number in order:
        cost, gain = points[number]
        if best is None or gain > best[1]:
            best = (cost, gain)
        found[number] = (cost, gain) == best
    return found
