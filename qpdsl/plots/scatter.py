"""What a picture shows: points of several series, gain over cost, each with the interval of its gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qpdsl.plots.scales import Scale, linear_scale, log_scale


@dataclass(frozen=True, slots=True)
class Point:
    """`x` is a cost, `y` a gain with its interval from `low` to `high`. `label` tells it from others of its series.

    `front` says that it is on the Pareto front of all series.
    """

    series: str
    x: float
    y: float
    low: float
    high: float
    label: str = ""
    front: bool = False


@dataclass(frozen=True, slots=True)
class Scatter:
    """A picture. Costs are drawn on a logarithmic axis where all are over 0; with `percent` gains are shares of 1."""

    title: str
    x_label: str
    y_label: str
    points: Sequence[Point]
    percent: bool = True

    @property
    def series(self) -> list[str]:
        """Every series once, in the order of the points."""
        return list(dict.fromkeys(point.series for point in self.points))

    @property
    def front(self) -> list[Point]:
        """The points of the front, by rising cost."""
        return sorted((point for point in self.points if point.front), key=lambda point: (point.x, point.y))

    def of(self, series: str) -> list[Point]:
        """The points of a series, by rising cost."""
        return sorted((point for point in self.points if point.series == series), key=lambda point: (point.x, point.y))

    def x_scale(self) -> Scale:
        values = [point.x for point in self.points]
        return log_scale(values) if values and min(values) > 0 else linear_scale(values)

    def y_scale(self) -> Scale:
        values = [value for point in self.points for value in (point.low, point.y, point.high)]
        return linear_scale(values, least=0.0, most=1.0) if self.percent else linear_scale(values)

    def y_text(self, value: float) -> str:
        """A tick of the gains, written."""
        return f"{value:.0%}" if self.percent else f"{value:,g}"


def x_text(value: float) -> str:
    """A tick of the costs, written: 1,000 as 1k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
