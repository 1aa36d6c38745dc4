"""What is asked before the dashboard closes, and what the keys do."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from qpdsl.tui.widgets.palette import Palette


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

    def compose(self) -> ComposeResult:
        with Vertical(id="question"):
            yield Static(Text("It is still going", style="bold"))
            yield Static("[b]h[/b]  leave it running here: close the dashboard, wait for what it prints")
            yield Static("[b]b[/b]  leave it running in the background; `qpdsl top` shows it again")
            yield Static("[b]s[/b]  stop it; rows that are finished are kept")
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


_KEYS = (
    ("1 2 3 4, tab", "the screens"),
    ("↑ ↓ j k g G", "move; page up and down too"),
    ("enter", "open: an operator, a candidate, a row's search"),
    ("!  w", "the search of the next row that failed, or is wrong"),
    ("v", "what the verifier is worth; esc goes back"),
    ("[ ]  f", "Search: another row; follow the latest"),
    ("x  space  o", "Search: hide pruned, fold, ranking"),
    ("z Z  < >", "Engine: zoom; earlier and later"),
    ("/  s  r  d", "Rows: filter, sort, reverse, details"),
    ("space", "replay: pause and go on (p on Search)"),
    ("← →  , .", "replay: jump, step by one event"),
    ("+ -  ( )", "replay: speed, to the beginning, to the end"),
    ("t  ctrl+p", "theme, all commands"),
    ("n  ?  q", "notes, keys, leave"),
)


class Keys(ModalScreen[None]):
    """All keys on one page."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q,question_mark", "close", "Close")]

    def compose(self) -> ComposeResult:
        palette = Palette.of(self.app)
        text = Text("Keys\n", style="bold")
        for keys, meaning in _KEYS:
            text.append(f"\n{keys:<16}", palette.accent).append(meaning, f"not bold {palette.text}")
        with Vertical(id="question"):
            yield Static(text)

    def action_close(self) -> None:
        self.dismiss()
