"""What is asked: what to do with a run before the dashboard closes, and which of a few things is meant."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static

from qpdsl.grammar.printable import one_line


class Leave(Enum):
    """What to do with the run that a dashboard started."""

    HERE = "here"
    BEHIND = "behind"
    STOP = "stop"


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


class LeaveQuestion(ChoiceQuestion):
    """Asked while the run is still going: the number of one of `Leave`, in their order; the last line stays."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(leave.value[0], f"choose({at})", leave.value.title(), show=False) for at, leave in enumerate(Leave)),
    ]

    def __init__(self, *, server: bool) -> None:
        kept = "requests have up to `--drain-seconds` to end" if server else "rows that are finished are kept"
        super().__init__(
            "It is still going",
            (
                "h  leave it running here, and wait for what it prints",
                "b  leave it in the background: `qpdsl top` shows it again",
                f"s  stop it; {kept}",
                "q  stay",
            ),
        )

    def action_choose(self, at: int) -> None:
        self.dismiss(at)
