"""The columns of a table: the width of each in the room there is, and which are left out where there is too little; and
their titles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from qpdsl.grammar.printable import cells, shorten
from qpdsl.tui.widgets.palette import Palette


@dataclass(frozen=True, slots=True)
class TableColumn:
    """`width` 0 takes what is left, at least `least`. Where space is short those with the lowest `weight` go first."""

    name: str
    title: str
    width: int
    right: bool = True
    weight: int = 10
    least: int = 16


def fitted(columns: Sequence[TableColumn], width: int) -> list[tuple[TableColumn, int]]:
    """The columns that have room, with their widths; a cell parts two."""
    kept = list(columns)
    while len(kept) > 1 and sum(column.width or column.least for column in kept) + len(kept) - 1 > width:
        kept.remove(min(kept, key=lambda column: column.weight))
    left = width - sum(column.width for column in kept) - (len(kept) - 1)
    open_ = sum(column.width == 0 for column in kept)
    layout = []
    for column in kept:
        if column.width:
            layout.append((column, column.width))
        else:
            share = left // open_
            layout.append((column, max(share, 1)))
            left, open_ = left - share, open_ - 1
    return layout


def row(layout: Sequence[tuple[TableColumn, int]], values: Mapping[str, Text | str], style: str = "") -> Text:
    """One line of a table."""
    line = Text(end="", no_wrap=True, style=style)
    for index, (column, width) in enumerate(layout):
        if index:
            line.append(" ")
        line.append_text(cell(values.get(column.name, ""), width, right=column.right))
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
        at = 1
        for column, width in fitted(self.columns, self.size.width - 2):
            if at <= event.x < at + width:
                self.post_message(self.Clicked(column.name))
            at += width + 1

    def _title(self, column: TableColumn, palette: Palette) -> Text:
        if column.name != self.sorted_by:
            return Text(column.title, style=palette.muted)
        return Text(f"{column.title}{'▾' if self.downwards else '▴'}", style=f"bold {palette.accent}")
