"""Accuracy by cost as a scatter plot with intervals and the Pareto front: in SVG, and in a terminal."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import BinaryIO

_STEPS = (1, 2, 5)
# Colours that people with any vision tell apart (Okabe and Ito, 2008), without yellow, which is pale on white.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_SHAPES = ("circle", "square", "triangle", "diamond")
_LEGEND_ROW = 20
_LETTER = 7.2
_BEGIN = "<!-- a plot of qpdsl -->"
# Within a page the rules hold for the whole page, so they name the picture.
_STYLE = """\
.plot text { font: 12px system-ui, sans-serif; fill: #222 }
.plot .title { font-size: 15px; font-weight: 600 }
.plot .name { font-size: 10px; fill: #555 }
.plot .grid { stroke: #ddd }
.plot .axis { stroke: #555 }
.plot .front { fill: none; stroke: #999; stroke-dasharray: 5 4 }
.plot .line { fill: none; stroke-width: 1.2; opacity: 0.55 }
.plot .bar { opacity: 0.45 }"""
_TEXT_HEIGHT = 16


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from `low` to `high`, with low < high; `log` means logarithmic, with low over 0."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high end."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """Round values on the axis, rising; `most` of them at the most, which is 2 or more."""
        choices = (_log_ticks(self) if self.log else iter(())), _linear_ticks(self)
        for ticks in (ticks for choice in choices for ticks in choice):
            if 2 <= len(ticks) <= most:
                return ticks
        return [self.low, self.high]


def linear_scale(values: Iterable[float], least: float = -math.inf, most: float = math.inf) -> Scale:
    """An axis that shows all values with a little room at both ends, from `least` to `most` at the widest."""
    low, high = _range(values)
    room = max((high - low) * 0.05, abs(high) * 0.005, 1e-6)
    return Scale(max(low - room, least), min(high + room, most))


def log_scale(values: Iterable[float]) -> Scale:
    """A logarithmic axis that shows all values, each over 0, with a little room at both ends."""
    low, high = _range(values)
    room = max((high / low) ** 0.05, 1.1)
    return Scale(low / room, high * room, log=True)


def _range(values: Iterable[float]) -> tuple[float, float]:
    known = list(values) or [0.0, 1.0]
    return min(known), max(known)


def _log_ticks(scale: Scale) -> Iterator[list[float]]:
    """1, 2, 5, 10…; then 1, 10, 100…; then every second, third… power of ten."""
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    powers = [10.0**power for power in range(first, last + 1)]
    for values in ([step * power for power in powers for step in _STEPS], powers):
        yield _within(scale, values)
    for apart in range(2, len(powers)):
        yield _within(scale, powers[::apart])


def _linear_ticks(scale: Scale) -> Iterator[list[float]]:
    """Multiples of a round step, from small steps to large ones."""
    power = math.floor(math.log10(scale.high - scale.low)) - 2
    for step in (base * 10.0**exponent for exponent in range(power, power + 5) for base in _STEPS):
        first, last = math.ceil(scale.low / step), math.floor(scale.high / step)
        # Products such as 3 * 0.1 are rounded, so that they are written as people write them.
        yield _within(scale, [round(number * step, 12) for number in range(first, last + 1)])


def _within(scale: Scale, values: Iterable[float]) -> list[float]:
    return [value for value in values if scale.low <= value <= scale.high]


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


_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 40, 56


def svg(scatter: Scatter, width: int = 720, height: int = 440) -> str:
    """The picture as one `<svg>` element, in so many pixels without its legend, which stands under it.

    The same scatter gives the same text.
    """
    return "\n".join(_Drawing(scatter, width, height).lines())


def begins_plot(file: BinaryIO) -> bool:
    """Whether an open file holds a plot that `svg` made, as far as its first lines tell."""
    return file.readline(1000).startswith(b"<svg ") and file.readline(100).decode(errors="replace").strip() == _BEGIN


class _Drawing:
    def __init__(self, scatter: Scatter, width: int, height: int) -> None:
        self._scatter = scatter
        self._width, self._height = width, height
        self._x, self._y = scatter.x_scale(), scatter.y_scale()
        self._entries = list(self._legend_places())
        self._numbers = {series: number for number, series in enumerate(scatter.series)}

    def lines(self) -> Iterator[str]:
        full = self._height + _LEGEND_ROW * (1 + max((row for _, row, _ in self._entries), default=0))
        size = f'viewBox="0 0 {self._width} {full}" width="{self._width}" height="{full}"'
        named = f'role="img" aria-label="{escape(self._scatter.title)}"'
        yield f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" {size} {named}>'
        yield _BEGIN
        yield f"<style>{_STYLE}</style>"
        yield f'<rect width="{self._width}" height="{full}" fill="#fff"/>'
        yield f'<text class="title" x="{_LEFT}" y="22">{escape(self._scatter.title)}</text>'
        yield from self._axes()
        yield from self._front()
        for series in self._scatter.series:
            yield from self._series(series)
        yield from self._legend()
        yield "</svg>"

    def _across(self, value: float) -> float:
        return _LEFT + self._x.at(value) * (self._width - _LEFT - _RIGHT)

    def _down(self, value: float) -> float:
        return _TOP + (1 - self._y.at(value)) * (self._height - _TOP - _BOTTOM)

    def _axes(self) -> Iterator[str]:
        left, right, top, bottom = _LEFT, self._width - _RIGHT, _TOP, self._height - _BOTTOM
        for tick in self._y.ticks(7):
            y = f"{self._down(tick):.1f}"
            yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
            yield f'<text x="{left - 8}" y="{y}" dy="4" text-anchor="end">{self._scatter.y_text(tick)}</text>'
        for tick in self._x.ticks(9):
            x = f"{self._across(tick):.1f}"
            yield f'<line class="grid" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>'
            yield f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{x_text(tick)}</text>'
        yield f'<path class="axis" fill="none" d="M{left} {top}V{bottom}H{right}"/>'
        yield (
            f'<text x="{(left + right) / 2:.1f}" y="{bottom + 38}" text-anchor="middle">'
            f"{escape(self._scatter.x_label)}</text>"
        )
        middle = (top + bottom) / 2
        yield (
            f'<text transform="translate(16 {middle:.1f}) rotate(-90)" text-anchor="middle">'
            f"{escape(self._scatter.y_label)}</text>"
        )

    def _front(self) -> Iterator[str]:
        if len(self._scatter.front) > 1:
            yield f'<polyline class="front" points="{self._path(self._scatter.front)}"/>'

    def _series(self, series: str) -> Iterator[str]:
        number, points = self._numbers[series], self._scatter.of(series)
        colour = _COLOURS[number % len(_COLOURS)]
        if len(points) > 1:
            yield f'<polyline class="line" stroke="{colour}" points="{self._path(points)}"/>'
        for point in points:
            x, low, high = self._across(point.x), self._down(point.low), self._down(point.high)
            ends = f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 3:.1f} {low:.1f}h6M{x - 3:.1f} {high:.1f}h6"
            yield f'<path class="bar" stroke="{colour}" d="{ends}"/>'
        for point in points:
            x, y = self._across(point.x), self._down(point.y)
            filled = colour if point.front else "#fff"
            name = f"{series} {point.label}".strip()
            told = f"{name}: {self._scatter.y_text(point.y)} at {x_text(float(f'{point.x:.4g}'))}"
            mark = f'd="{_shape(number, x, y)}" fill="{filled}" stroke="{colour}"'
            yield f"<path {mark}><title>{escape(told)}</title></path>"
            if point.label:
                anchor, aside = ("end", -7) if x > self._width - _RIGHT - _LETTER * len(point.label) else ("start", 7)
                place = f'x="{x + aside:.1f}" y="{y - 6:.1f}" text-anchor="{anchor}"'
                yield f'<text class="name" {place}>{escape(point.label)}</text>'

    def _path(self, points: list[Point]) -> str:
        return " ".join(f"{self._across(point.x):.1f},{self._down(point.y):.1f}" for point in points)

    def _legend_places(self) -> Iterator[tuple[str, int, float]]:
        """Each series with its row under the picture and where it begins in it."""
        row, at = 0, float(_LEFT)
        for series in self._scatter.series:
            wide = 34 + _LETTER * len(series)
            if at > _LEFT and at + wide > self._width:
                row, at = row + 1, float(_LEFT)
            yield series, row, at
            at += wide

    def _legend(self) -> Iterator[str]:
        for series, row, at in self._entries:
            number, y = self._numbers[series], self._height + row * _LEGEND_ROW + 4
            colour = _COLOURS[number % len(_COLOURS)]
            yield f'<path d="{_shape(number, at + 5, y - 4)}" fill="{colour}" stroke="{colour}"/>'
            yield f'<text x="{at + 15:.1f}" y="{y}">{escape(series)}</text>'


def _shape(number: int, x: float, y: float) -> str:
    """The outline of a series' mark around a place; with the colours there are 28 different ones."""
    match _SHAPES[number % len(_SHAPES)]:
        case "circle":
            return f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z"
        case "square":
            return f"M{x - 3.5:.1f} {y - 3.5:.1f}h7v7h-7z"
        case "triangle":
            return f"M{x:.1f} {y - 4.5:.1f}l4.5 8h-9z"
    return f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"


_BAR, _SIDE, _FLOOR, _CORNER = "·", "│", "─", "└"


def text_plot(scatter: Scatter, width: int = 80) -> list[str]:
    """The picture in at most `width` columns, 40 at the least; no line ends in space.

    Series from the 27th on have the letters again.
    """
    x_scale, y_scale = scatter.x_scale(), scatter.y_scale()
    names = _y_names(scatter, y_scale)
    margin = max(map(len, names.values()), default=0) + 1
    columns = max(width, 40) - margin - 1
    field = _field(scatter, x_scale, y_scale, columns)
    body = [f"{names.get(row, ''):>{margin}}{_SIDE}{''.join(cells)}" for row, cells in enumerate(field)]
    floor = " " * margin + _CORNER + _FLOOR * columns
    ticks = " " * (margin + 1) + _x_names(x_scale, columns)
    under = " " * margin + scatter.x_label.center(columns)
    drawn = [scatter.title, "", scatter.y_label, *body, floor, ticks, under, "", *_legend(scatter, width)]
    return [line.rstrip() for line in drawn]


def _letter(number: int) -> str:
    return string.ascii_lowercase[number % 26]


def _text_row(scale: Scale, value: float) -> int:
    return round((1 - scale.at(value)) * (_TEXT_HEIGHT - 1))


def _field(scatter: Scatter, x_scale: Scale, y_scale: Scale, columns: int) -> list[list[str]]:
    field = [[" "] * columns for _ in range(_TEXT_HEIGHT)]
    places = [(point, round(x_scale.at(point.x) * (columns - 1))) for point in scatter.points]
    for point, column in places:
        for row in range(_text_row(y_scale, point.high), _text_row(y_scale, point.low) + 1):
            field[row][column] = _BAR
    letters = {series: _letter(number) for number, series in enumerate(scatter.series)}
    # Points of the front are drawn last, so that none is hidden by one that is beaten.
    for point, column in sorted(places, key=lambda place: place[0].front):
        letter = letters[point.series]
        field[_text_row(y_scale, point.y)][column] = letter.upper() if point.front else letter
    return field


def _y_names(scatter: Scatter, scale: Scale) -> dict[int, str]:
    return {_text_row(scale, tick): scatter.y_text(tick) for tick in scale.ticks(6)}


def _x_names(scale: Scale, columns: int) -> str:
    """The ticks, each centred under its value where there is room."""
    line = [" "] * columns
    for tick in scale.ticks(max(columns // 8, 2)):
        text = x_text(tick)
        start = min(max(round(scale.at(tick) * (columns - 1)) - len(text) // 2, 0), columns - len(text))
        if not "".join(line[max(start - 1, 0) : start + len(text) + 1]).strip():
            line[start : start + len(text)] = text
    return "".join(line)


def _legend(scatter: Scatter, width: int) -> list[str]:
    """The letters with their series, as many a line as fit."""
    entries = [f"{_letter(number)} {series}" for number, series in enumerate(scatter.series)]
    made: list[str] = []
    for entry in [*entries, "capital: on the front", f"{_BAR} interval"]:
        if made and len(made[-1]) + 3 + len(entry) <= width:
            made[-1] += f"   {entry}"
        else:
            made.append(entry)
    return made
