"""A `Scatter` as lines of text: a letter a series, a capital on the front, a bar for each interval."""

from __future__ import annotations

import string

from qpdsl.plots.scales import Scale
from qpdsl.plots.scatter import Scatter, x_text

_HEIGHT = 16
_BAR, _SIDE, _FLOOR, _CORNER = "·", "│", "─", "└"


def lines(scatter: Scatter, width: int = 80) -> list[str]:
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


def _row(scale: Scale, value: float) -> int:
    return round((1 - scale.at(value)) * (_HEIGHT - 1))


def _field(scatter: Scatter, x_scale: Scale, y_scale: Scale, columns: int) -> list[list[str]]:
    field = [[" "] * columns for _ in range(_HEIGHT)]
    places = [(point, round(x_scale.at(point.x) * (columns - 1))) for point in scatter.points]
    for point, column in places:
        for row in range(_row(y_scale, point.high), _row(y_scale, point.low) + 1):
            field[row][column] = _BAR
    letters = {series: _letter(number) for number, series in enumerate(scatter.series)}
    # Points of the front are drawn last, so that none is hidden by one that is beaten.
    for point, column in sorted(places, key=lambda place: place[0].front):
        letter = letters[point.series]
        field[_row(y_scale, point.y)][column] = letter.upper() if point.front else letter
    return field


def _y_names(scatter: Scatter, scale: Scale) -> dict[int, str]:
    return {_row(scale, tick): scatter.y_text(tick) for tick in scale.ticks(6)}


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
