"""The titles of a table's columns; a click on one sorts by it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.table_columns import TableColumn, fitted, row


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
