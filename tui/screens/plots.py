"""Figures and plots over time, side by side in the panel of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.palette import Palette

# Cells for the figures, and of these for their names.
FIGURES, LABEL = 36, 13
# A short run is drawn wider: so many columns for a value at most.
_WIDEST = 24


class Plot(NamedTuple):
    """Values over the whole run; `top` is the greatest that could be, `most` what is written there where it differs."""

    title: str
    values: Sequence[float]
    colour: str
    top: float | None = None
    most: float | None = None


def fact(name: str, value: str, palette: Palette, colour: str | None = None) -> Text:
    return Text.assemble((f"{name:<{LABEL}} ", palette.muted), (value, colour or palette.text))


def plotted(plots: Sequence[Plot], width: int, height: int, palette: Palette) -> list[Text]:
    """The plots below each other, as many lines as there are; those of nothing are left out."""
    shown = [plot for plot in plots if any(plot.values)] or plots
    share, spare = divmod(height, len(shown))
    lines: list[Text] = []
    for number, plot in enumerate(shown):
        tall = max(share - 1 + (number < spare), 1)
        columns = max(min(width, len(plot.values) * _WIDEST), len(plot.values))
        values = [plot.values[at * len(plot.values) // columns] for at in range(columns)]
        most = next((top for top in (plot.most, plot.top) if top is not None), max(plot.values, default=0.0))
        lines.append(_title(plot.title, f"{most:.2g}" if 0 < most < 1 else figures.count(most), width, palette))
        lines += [Text(line, style=plot.colour) for line in figures.graph(values, width, tall, plot.top)]
    return lines + [Text()] * (height - len(lines))


def _title(title: str, most: str, width: int, palette: Palette) -> Text:
    dots = max(width - len(title) - len(most) - 6, 0)
    line = Text.assemble((title, palette.text), (f" {'·' * dots} ", palette.faint))
    return line.append("top ", palette.muted).append(most, palette.text)
