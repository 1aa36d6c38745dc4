"""A few lines below a list. Where a text has more lines than there is room for, the last one says so."""

from __future__ import annotations

from rich.text import Text
from textual.widget import Widget

from qpdsl.tui.widgets.palette import Palette


class Panel(Widget):
    """`key` is the one that shows all of it."""

    def __init__(self, key: str, *, id: str) -> None:
        super().__init__(id=id, classes="panel")
        self._key = key
        self._text = Text()

    def update(self, text: Text | str) -> None:
        self._text = text if isinstance(text, Text) else Text(text)
        self.refresh()

    def render(self) -> Text:
        lines = list(self._text.wrap(self.app.console, max(self.size.width, 1), tab_size=4))
        for line in lines:
            line.rstrip()
        height = max(self.size.height, 1)
        if len(lines) > height:
            left = len(lines) - height + 1
            lines[height - 1 :] = [Text(f"… {left} more lines, {self._key} shows all", Palette.of(self.app).muted)]
        return Text("\n").join(lines)
