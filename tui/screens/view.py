"""The base of the screens."""

from __future__ import annotations

from textual.containers import Vertical
from textual.geometry import Size
from textual.message import Message

from qpdsl.tui.state.run_state import RunState

# What can be copied, by what it is called.
Copies = list[tuple[str, str]]


class View(Vertical):
    """A screen over the state of a run. `update` is called when the state has changed, while the screen is shown."""

    class Opened(Message):
        """The user wants to see how a row was searched."""

        def __init__(self, row: str) -> None:
            super().__init__()
            self.row = row

    # From this width on there is room for a second pane beside the first.
    WIDE = 110
    # Below this height what is told beside the list has few lines.
    LOW = 16
    # Where the keys of the screen work.
    FOCUS = "LineList"

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.state = RunState()

    def update(self, state: RunState) -> None:
        """Shows a state; it may be another object than before, such as after a jump in a replay."""
        self.state = state
        if self.is_attached:
            self.draw()

    def draw(self) -> None:
        raise NotImplementedError

    def copies(self) -> Copies:
        """What can be copied of the line of the cursor, the most wanted first."""
        return []

    def words(self) -> tuple[str, ...]:
        """The words that may need an explanation, those of the line of the cursor first."""
        return ()

    def on_resize(self) -> None:
        """Draws again: what a screen shows depends on the room that it has, which is known once it is laid out."""
        self.draw()

    def set_space(self, size: Size) -> None:
        """Says how much room the screen has, before it is laid out."""
        self.set_class(size.width >= self.WIDE, "wide")
        self.set_class(size.height < self.LOW, "low")

    def take_focus(self) -> None:
        self.query_one(self.FOCUS).focus()
