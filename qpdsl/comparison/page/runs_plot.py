"""Accuracy against what it cost, of several sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qpdsl.comparison.page.side_figures import SideFigures
from qpdsl.plots.pareto import on_front
from qpdsl.plots.scatter import Point, Scatter
from qpdsl.plots.svg_scatter import svg

# The programs and the letters of sides, with their figures.
Named = Sequence[tuple[str, str, SideFigures]]


def plots(sides: Named) -> list[str]:
    """A picture over tokens and one over seconds, each as SVG, where that was measured of all sides."""
    drawn = [
        _plot(sides, "Accuracy against tokens", "tokens out a problem", lambda figures: figures.tokens_out),
        _plot(sides, "Accuracy against seconds", "engine seconds a problem", lambda figures: figures.seconds),
    ]
    return [svg(scatter) for scatter in drawn if scatter is not None]


def _plot(sides: Named, title: str, label: str, cost: Callable[[SideFigures], float | None]) -> Scatter | None:
    places = [(cost(figures), figures.accuracy) for _, _, figures in sides]
    known = [(x, share) for x, share in places if x is not None and share is not None]
    if not known or len(known) < len(places):
        return None
    front = on_front([(x, share.value) for x, share in known])
    points = [
        Point(program, x, share.value, share.interval.low, share.interval.high, label=letter, front=is_front)
        for (program, letter, _), (x, share), is_front in zip(sides, known, front, strict=True)
    ]
    return Scatter(title, label, "accuracy", points)
