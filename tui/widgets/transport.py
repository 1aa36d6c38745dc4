"""The line of a replay: paused or playing, how fast, and where; a click on it jumps."""

from __future__ import annotations

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from qpdsl.grammar.width import cells
from qpdsl.tui.state.player import Player
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.palette import Palette


class Transport(Widget):
    """Drag or click to jump."""

    class Sought(Message):
        def __init__(self, part: float) -> None:
            super().__init__()
            self.part = part

    def __init__(self, player: Player) -> None:
        super().__init__(id="transport")
        self._player = player
        self._bar = (0, 1)

    def render(self) -> Text:
        palette, player = Palette.of(self.app), self._player
        playing = not player.paused
        left = Text.assemble(
            (" ▶ " if playing else " ‖ ", f"bold {palette.good if playing else palette.warn}"),
            (f"{'playing' if playing else 'paused':<8}", palette.text),
            (f"{player.speed:g}×".ljust(6), palette.text),
        )
        number, total = player.event_number
        right = f" {figures.clock(player.position)} of {figures.clock(player.duration)}  event {number:,} of {total:,}"
        right += "" if player.loaded else "  loading"
        room = self.size.width - cells(left.plain) - cells(right) - 1
        if room < 8:
            right = f" {figures.clock(player.position)}/{figures.clock(player.duration)}"
            room = max(self.size.width - cells(left.plain) - cells(right) - 1, 1)
        part = player.position / player.duration if player.duration else 0.0
        at = min(round(part * (room - 1)), room - 1)
        self._bar = (cells(left.plain), room)
        left.append("━" * at, palette.accent).append("●", f"bold {palette.accent}")
        return left.append("─" * (room - at - 1), palette.faint).append(right, palette.muted)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self.capture_mouse()
        self._jump(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if event.button:
            self._jump(event.x)

    def on_mouse_up(self) -> None:
        self.release_mouse()

    def _jump(self, x: int) -> None:
        first, room = self._bar
        self.post_message(self.Sought(min(max((x - first) / max(room - 1, 1), 0.0), 1.0)))
