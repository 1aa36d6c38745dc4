"""What is asked: what to do with a run before the dashboard closes, and which of a few things is meant."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, OptionList, Static

from qpdsl.grammar.printable import one_line


class Leave(Enum):
    """What to do with the run that a dashboard started."""

    HERE = "here"
    BEHIND = "behind"
    STOP = "stop"


class LeaveQuestion(ModalScreen[Leave | None]):
    """Asked while the run is still going."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h", "leave('HERE')", "Here"),
        Binding("b", "leave('BEHIND')", "Background"),
        Binding("s", "leave('STOP')", "Stop"),
        Binding("escape,q", "stay", "Stay"),
    ]

    def __init__(self, *, server: bool) -> None:
        super().__init__()
        self._stopped = "requests have up to `--drain-seconds` to end" if server else "rows that are finished are kept"

    def compose(self) -> ComposeResult:
        with Vertical(id="question"):
            yield Static(Text("It is still going", style="bold"))
            yield Static("[b]h[/b]  leave it running here: close the dashboard, wait for what it prints")
            yield Static("[b]b[/b]  leave it running in the background; `qpdsl top` shows it again")
            yield Static(f"[b]s[/b]  stop it; {self._stopped}")
            with Horizontal():
                yield Button("Here", id="HERE", variant="primary", compact=True)
                yield Button("Background", id="BEHIND", compact=True)
                yield Button("Stop", id="STOP", variant="error", compact=True)
                yield Button("Stay", id="STAY", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        name = event.button.id
        self.dismiss(None if name == "STAY" or name is None else Leave[name])

    def action_leave(self, name: str) -> None:
        self.dismiss(Leave[name])

    def action_stay(self) -> None:
        self.dismiss(None)


class ChoiceQuestion(ModalScreen[int | None]):
    """Enter chooses the line of the cursor, which stands on the first; it is the number of the line, from 0."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Close"),
        Binding("j", "move('down')", "Down", show=False),
        Binding("k", "move('up')", "Up", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[str]) -> None:
        super().__init__()
        self._title, self._lines = title, lines

    def compose(self) -> ComposeResult:
        with Vertical(id="question"):
            yield Static(Text(self._title, style="bold"))
            yield OptionList(*(Text(one_line(line), no_wrap=True, overflow="ellipsis") for line in self._lines))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index)

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_move(self, way: str) -> None:
        choices = self.query_one(OptionList)
        choices.action_cursor_down() if way == "down" else choices.action_cursor_up()
