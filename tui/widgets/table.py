"""The columns of a table: the width of each in the room there is, and which are left out where there is too little; and
their titles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import NamedTuple

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from qpdsl.grammar.printable import cells, shorten
from qpdsl.tui.widgets.palette import Palette

# So many texts say how wide those of all rows are.
_MEASURED = 500


@dataclass(frozen=True, slots=True)
class TableColumn:
    """`width` 0 takes what is left, at least `least`, and no more than `most` cells where that is known.

    Where space is short those with the lowest `weight` go first.
    """

    name: str
    title: str
    width: int
    right: bool = True
    weight: int = 10
    least: int = 16
    most: int | None = None


def as_wide_as(column: TableColumn, texts: Iterable[str], most: int) -> TableColumn:
    """The column, as wide as its title and the longest of its first texts, up to the most cells.

    One that takes what is left takes no more than that.
    """
    need = max(min(max((cells(text) for text in islice(texts, _MEASURED)), default=0), most), cells(column.title))
    return replace(column, width=need) if column.width else replace(column, most=need)


class PlacedColumn(NamedTuple):
    """`at` is its first cell."""

    column: TableColumn
    at: int
    width: int


def fitted(columns: Sequence[TableColumn], width: int) -> list[PlacedColumn]:
    """The columns that have room, with their places; a cell parts two, or two where there is room for that."""
    kept = list(columns)
    while len(kept) > 1 and _needed(kept, 1) > width:
        kept.remove(min(kept, key=lambda column: column.weight))
    gaps = _gaps(kept, 2 if _needed(kept, 2) <= width else 1)
    left = width - sum(column.width for column in kept) - sum(gaps)
    open_ = sum(column.width == 0 for column in kept)
    layout, at = list[PlacedColumn](), 0
    for column, gap in zip(kept, gaps, strict=True):
        share = column.width
        if not share:
            share = max(left // open_, 1)
            share = share if column.most is None else min(share, max(column.most, column.least))
            left, open_ = left - share, open_ - 1
        layout.append(PlacedColumn(column, at + gap, share))
        at += gap + share
    return layout


def _needed(columns: Sequence[TableColumn], gap: int) -> int:
    return sum(column.width or column.least for column in columns) + sum(_gaps(columns, gap))


def _gaps(columns: Sequence[TableColumn], gap: int) -> list[int]:
    """The blank cells before each column: two where what ends at the right meets what begins at the left."""
    return [0, *(2 if before.right and not column.right else gap for before, column in pairwise(columns))]


def row(layout: Sequence[PlacedColumn], values: Mapping[str, Text | str]) -> Text:
    """One line of a table."""
    line, end = Text(end="", no_wrap=True), 0
    for column, at, width in layout:
        line.append(" " * (at - end)).append_text(cell(values.get(column.name, ""), width, right=column.right))
        end = at + width
    return line


def cell(value: Text | str, width: int, *, right: bool = False) -> Text:
    """A value cut or padded to so many cells."""
    text = value.copy() if isinstance(value, Text) else Text(value)
    text.end = ""
    size = cells(text.plain)
    if size > width:
        if len(text.spans) == 0:
            return Text(shorten(text.plain, width).ljust(width), style=text.style, end="")
        text.truncate(width, overflow="ellipsis")
        return text
    space = " " * (width - size)
    return Text(space, end="").append_text(text) if right else text.append(space)


class Heading(Widget):
    """One line over a `LineList`."""

    class Clicked(Message):
        def __init__(self, column: str) -> None:
            super().__init__()
            self.column = column

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        super().__init__()
        self.columns = columns
        self.sorted_by: str | None = None
        self.downwards = False

    def show(self, columns: Sequence[TableColumn], sorted_by: str | None = None, *, downwards: bool = False) -> None:
        if (columns, sorted_by, downwards) != (self.columns, self.sorted_by, self.downwards):
            self.columns, self.sorted_by, self.downwards = columns, sorted_by, downwards
            self.refresh()

    def render(self) -> Text:
        palette = Palette.of(self.app)
        titles = {column.name: self._title(column, palette) for column in self.columns}
        return Text(" ").append_text(row(fitted(self.columns, self.size.width - 2), titles))

    def on_click(self, event: events.Click) -> None:
        for column, at, width in fitted(self.columns, self.size.width - 2):
            if at < event.x <= at + width:
                self.post_message(self.Clicked(column.name))

    def _title(self, column: TableColumn, palette: Palette) -> Text:
        if column.name != self.sorted_by:
            return Text(column.title, style=palette.muted)
        return Text(f"{column.title}{'▾' if self.downwards else '▴'}", style=f"bold {palette.accent}")
