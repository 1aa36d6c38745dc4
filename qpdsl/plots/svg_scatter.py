"""A `Scatter` as SVG: a colour and a shape a series, bars for intervals, a dashed line along the front."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import BinaryIO

from qpdsl.plots.scatter import Point, Scatter, x_text

# Colours that people with any vision tell apart (Okabe and Ito, 2008), without yellow, which is pale on white.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_SHAPES = ("circle", "square", "triangle", "diamond")
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 40, 56
_ROW = 20
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
        full = self._height + _ROW * (1 + max((row for _, row, _ in self._entries), default=0))
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
            number, y = self._numbers[series], self._height + row * _ROW + 4
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
