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
from qpdsl.tui.widgets.table import Heading, TableColumn, as_wide_as, fitted, row

# The most cells of a name.
_NAME = 100


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
        yield Listed(self)
        yield Static(id=f"{self.id}-foot", classes="foot")

    def draw(self) -> None:
        lines = self.query_one(Listed)
        lines.show(self.items(self.state))
        self.query_one(Heading).show(lines.columns)
        if not lines.by_hand:
            lines.point(0)
        self.query_one(f"#{self.id}-foot", Static).update(self.foot(self.state, Palette.of(self.app)))


class Listed(LineList):
    def __init__(self, listing: Listing) -> None:
        super().__init__(id=f"{listing.id}-lines")
        self._listing = listing
        self.columns = listing.COLUMNS

    def show(self, items: Sequence[Any]) -> None:
        """What the first column calls them has as much room as it needs."""
        first, *others = self._listing.COLUMNS
        names = (f"{self._listing.key_of(item)}  " for item in items)
        self.columns = (as_wide_as(first, names, _NAME), *others)
        self.set_items(items, self._listing.key_of)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing lies below a line."""
        return action != "choose"

    def line(self, index: int, width: int, palette: Palette) -> Text:
        return row(fitted(self.columns, width), self._listing.values(self.items[index], palette))
