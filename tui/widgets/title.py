"""The two lines at the top: the program and its progress, and the screens by number."""

from __future__ import annotations

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from qpdsl.grammar.printable import one_line
from qpdsl.grammar.width import cells
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.palette import Palette

SCREENS = ("plan", "search", "engine", "rows")
# Sign, word, and the palette's colour.
_PHASES = {
    "waiting": ("◌", "waiting for the run", "muted"),
    "loading": ("◌", "loading models", "warn"),
    "running": ("●", "running", "good"),
    "done": ("✔", "done", "good"),
    "failed": ("✖", "failed", "bad"),
    "interrupted": ("■", "interrupted", "warn"),
    "gone": ("✖", "the run is gone", "bad"),
}


class Title(Widget):
    """A click on a screen's name opens it."""

    class Picked(Message):
        def __init__(self, screen: str) -> None:
            super().__init__()
            self.screen = screen

    def __init__(self) -> None:
        super().__init__(id="head")
        self._state = RunState()
        self._phase = "waiting"
        self._elapsed = 0.0
        self._picked = SCREENS[0]

    def show(self, state: RunState, phase: str, elapsed: float, picked: str) -> None:
        self._state, self._phase, self._elapsed, self._picked = state, phase, elapsed, picked
        self.refresh()

    def render(self) -> Text:
        palette = Palette.of(self.app)
        return Text("\n").join([self._figures(palette), self._tabs(palette)])

    def on_click(self, event: events.Click) -> None:
        if event.y == 1:
            at = 1
            for number, name in enumerate(SCREENS, 1):
                width = len(f" {number} {name.title()} ")
                if at <= event.x < at + width:
                    self.post_message(self.Picked(name))
                at += width + 1

    def _figures(self, palette: Palette) -> Text:
        state, width = self._state, self.size.width
        sign, word, colour = _PHASES.get(self._phase, ("●", one_line(self._phase), "muted"))
        left = Text.assemble((" ◆ ", palette.accent), (one_line(self._title()), "bold"))
        right = Text.assemble((f"{sign} {word}", f"bold {getattr(palette, colour)}"))
        parts = [(figures.clock(self._elapsed), palette.text)]
        if state.total > 1:
            parts.append((f"{state.done:,}/{state.total:,} rows", palette.text))
        if state.failed:
            parts.append((f"✖ {state.failed:,} failed", palette.bad))
        if state.judged and state.total > 1:
            parts.append((f"{figures.share(state.right / state.judged)} right", palette.text))
        rate = sum(model.rate(state.now, "decode") for model in state.models.values())
        if self._phase == "running" and state.models:
            parts.append((f"{figures.count(rate)} tok/s", palette.text))
        for text, style in parts:
            if cells(left.plain) + cells(right.plain) + cells(text) + 6 > width:
                break
            right.append("  ").append(text, style)
        space = max(width - cells(left.plain) - cells(right.plain) - 1, 1)
        return left.append(" " * space).append_text(right)

    def _title(self) -> str:
        plan = self._state.plan
        if plan is None:
            return "qpdsl"
        return plan.source.rsplit("/", 1)[-1] if plan.source.endswith(".qp") else plan.name

    def _tabs(self, palette: Palette) -> Text:
        line = Text(" ")
        for number, name in enumerate(SCREENS, 1):
            on = name == self._picked
            style = f"bold {palette.background} on {palette.accent}" if on else palette.muted
            line.append(f" {number} {name.title()} ", f"{style} underline" if on else style).append(" ")
        note = self._note()
        space = self.size.width - cells(line.plain) - cells(note) - 1
        return line.append(" " * max(space, 1)).append(note, palette.warn) if space > 0 else line

    def _note(self) -> str:
        lost = self._state.lost
        return f"{figures.count(lost)} events were missed" if lost else ""
