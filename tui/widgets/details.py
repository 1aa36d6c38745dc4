"""Facts about one thing, beside a list or, where there is no room, over it."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Static

from qpdsl.grammar.printable import one_line, printable, shorten
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.table import cell

# Cells for names, and the most of them.
_LABEL, _MOST = 16, 36


class Facts:
    """A title and lines of name and value; what has lines of its own stands under its name."""

    def __init__(self, title: str) -> None:
        self.title = one_line(title)
        self._parts: list[tuple[str, str | Text] | None] = []

    def add(self, name: str, value: str | Text | None) -> None:
        """Adds a fact; a value of None is left out."""
        if value is not None:
            self._parts.append((name, value))

    def gap(self) -> None:
        if self._parts and self._parts[-1] is not None:
            self._parts.append(None)

    def columns(self, palette: Palette, width: int, height: int) -> Text:
        """The title and the short facts in two columns, for a low panel."""
        short = [part for part in self._parts if part is not None and not _long(part[1])]
        half = width // 2
        label = _width(short[: 2 * (height - 1)])
        more = len([part for part in self._parts if part is not None]) - len(short[: 2 * (height - 1)])
        hint = f"  {more} more: enter" if more else ""
        title = shorten(self.title, max(width - len(hint), 1))
        lines = [Text.assemble((title, "bold"), (hint, palette.muted), end="")]
        for at in range(height - 1):
            line = Text(end="")
            for name, value in short[at :: height - 1][:2]:
                pair = Text(f"{name:<{label}}", style=palette.muted, end="")
                pair.append_text(
                    value if isinstance(value, Text) else Text(printable(value, tabs=False), style=palette.text)
                )
                line.append_text(cell(pair, half))
            lines.append(line)
        return Text("\n").join(lines)

    def render(self, palette: Palette, width: int) -> Text:
        """All facts. A value that is too long for its line continues below it."""
        text = Text.assemble((self.title, "bold"), "\n")
        label = min(_width([part for part in self._parts if part is not None]), max(width * 2 // 5, 8))
        for part in self._parts:
            text.append("\n")
            if part is None:
                continue
            name, value = part
            if isinstance(value, Text) or "\n" in value:
                text.append(f"{name}\n" if "\n" in str(value) else f"{name:<{label}}", palette.muted)
                text.append_text(value if isinstance(value, Text) else Text(printable(value, tabs=False), palette.text))
                continue
            first, *more = wrap(printable(value, tabs=False), max(width - label, 12), drop_whitespace=False) or [""]
            text.append(f"{name:<{label}}" if len(name) < label else f"{name}\n{'':<{label}}", palette.muted)
            text.append(f"\n{'':<{label}}".join([first, *(line.lstrip() for line in more)]), palette.text)
        return text


class Details(ModalScreen[None]):
    """Escape, enter or a click beside it closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss_details", "Close"),
        Binding("down,j", "scroll(1)", "Down", show=False),
        Binding("up,k", "scroll(-1)", "Up", show=False),
    ]

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self._facts = facts

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="details") as box:
            box.border_subtitle = "esc closes"
            yield Static(self._told(self.app.size.width))

    def on_resize(self, event: Resize) -> None:
        for shown in self.query(Static):
            shown.update(self._told(event.size.width))

    def _told(self, width: int) -> Text:
        """The facts in the room of the box: less its borders, blanks and bar (`dashboard.tcss`)."""
        return self._facts.render(Palette.of(self.app), min(100, width * 94 // 100) - 8)

    def on_click(self, event: object) -> None:
        if getattr(event, "widget", None) is self:
            self.dismiss()

    def action_dismiss_details(self) -> None:
        self.dismiss()

    def action_scroll(self, by: int) -> None:
        self.query_one("#details").scroll_relative(y=by, animate=False)


def _width(facts: Sequence[tuple[str, str | Text]]) -> int:
    """As many cells as the names need."""
    return min(max(_LABEL, 2 + max((len(name) for name, _ in facts), default=0)), _MOST)


def _long(value: str | Text) -> bool:
    plain = value.plain if isinstance(value, Text) else value
    return "\n" in plain or len(plain) > 60
