"""Figures and plots over time, side by side in the panel of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.palette import Palette

# Cells for the figures, and of these for their names.
FIGURES, LABEL = 36, 13
# The axis of fewer seconds has tenths of them.
_SHORT = 10.0


class Plot(NamedTuple):
    """Values over a time; the greatest of them is the top of the plot."""

    title: str
    values: Sequence[float]
    colour: str


def fact(name: str, value: str, palette: Palette, colour: str | None = None) -> Text:
    return Text.assemble((f"{name:<{LABEL}} ", palette.muted), (value, colour or palette.text))


def plotted(plots: Sequence[Plot], begun: float, end: float, width: int, height: int, palette: Palette) -> list[Text]:
    """The plots below each other, and below them their time; those of nothing are left out."""
    shown = [plot for plot in plots if any(plot.values)] or plots
    share, spare = divmod(height - 1, len(shown))
    lines: list[Text] = []
    for number, plot in enumerate(shown):
        tall = max(share - 1 + (number < spare), 1)
        columns = max(width, len(plot.values))
        values = [plot.values[at * len(plot.values) // columns] for at in range(columns)] if plot.values else []
        top = max(values, default=0.0)
        lines.append(_title(plot.title, f"{top:.2g}" if 0 < top < 1 else figures.count(top), width, palette))
        lines += [Text(line, style=plot.colour) for line in figures.graph(values, width, tall)]
    return [*lines, Text(_axis(begun, end, width), style=palette.muted)]


def _axis(begun: float, end: float, width: int) -> str:
    """When the plots begin and end, and half of the way."""
    tenths = end - begun < _SHORT
    times = (begun, (begun + end) / 2, end)
    first, half, last = (figures.clock(at) + (f".{int(at * 10) % 10}" if tenths else "") for at in times)
    between = max(width - len(first) - len(half) - len(last), 2)
    return f"{first}{half:^{between + len(half)}}{last}"


def _title(title: str, most: str, width: int, palette: Palette) -> Text:
    dots = max(width - len(title) - len(most) - 6, 0)
    line = Text.assemble((title, palette.text), (f" {'·' * dots} ", palette.faint))
    return line.append("top ", palette.muted).append(most, palette.text)
