"""The base of screens that are one table: a line each, and a line below that sums them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from qpdsl.tui.screens.view import View
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.widgets.line_list import LineList
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.table import Heading, TableColumn, fitted, row


class Listing(View):
    """Subclasses say which items there are, what each shows in the columns, and what stands below."""

    COLUMNS: ClassVar[Sequence[TableColumn]]

    def items(self, state: RunState) -> Sequence[Any]:
        raise NotImplementedError

    def key_of(self, item: Any) -> str:
        """What tells an item from others, whatever it shows."""
        raise NotImplementedError

    def values(self, item: Any, palette: Palette) -> Mapping[str, Text | str]:
        raise NotImplementedError

    def foot(self, state: RunState, palette: Palette) -> Text:
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield Heading(self.COLUMNS)
        yield _Lines(self)
        yield Static(id=f"{self.id}-foot", classes="foot")

    def draw(self) -> None:
        lines = self.query_one(_Lines)
        lines.set_items(self.items(self.state), self.key_of)
        if not lines.by_hand:
            lines.point(0)
        self.query_one(f"#{self.id}-foot", Static).update(self.foot(self.state, Palette.of(self.app)))


class _Lines(LineList):
    def __init__(self, listing: Listing) -> None:
        super().__init__(id=f"{listing.id}-lines")
        self._listing = listing

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing lies below a line."""
        return action != "choose"

    def line(self, index: int, width: int, palette: Palette) -> Text:
        return row(fitted(self._listing.COLUMNS, width), self._listing.values(self.items[index], palette))
