"""Engine: each model's memory, batches and tokens a second, over time."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from qpdsl.grammar.printable import one_line
from qpdsl.tui.screens.model_figures import Window, model_facts, model_plots, server_facts, server_plots
from qpdsl.tui.screens.plots import FIGURES, Plot, plotted
from qpdsl.tui.screens.view import Copies, View
from qpdsl.tui.state.engine import Series
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.state.time_spent import SPENT, Shortage, Spent
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.table import cell

_LEAST, _TALLEST = 8, 28
# What the time went into: its sign in the bar, the palette's colour, and words.
TIME: dict[Spent, tuple[str, str]] = {
    "decode": ("█", "good"),
    "prefill": ("▓", "accent"),
    "verifier": ("▒", "second"),
    "server": ("░", "warn"),
    "Python": ("▪", "text"),
    "idle": ("·", "muted"),
}
TIME_WORDS: dict[Spent, str] = {name: "waits for server" if name == "server" else name for name in SPENT}
# A window of the graphs is this part of the run at the least.
_FINEST = 64
# From this width of the screen on the figures of a model stand in two columns.
_ROOMY = 150


class ModelPanel(Widget):
    """One model, here or on a server: figures on the left, series over the whole run on the right."""

    def __init__(self, name: str) -> None:
        super().__init__(classes="model")
        self.model = name
        self.state = RunState()
        self.window: Window = None
        self._sight = 0
        self.border_title = Text(one_line(name))

    def show(self, state: RunState, window: Window, sight: int) -> None:
        """`sight` are the lines of it that the screen has; the plots stand in these, however many figures there are."""
        self.state, self.window, self._sight = state, window, sight
        self.border_subtitle = "zoomed, Z shows more" if window else ""
        self.refresh()

    @property
    def lines(self) -> int:
        """How many lines the figures need."""
        return math.ceil(len(self._facts(Palette.of(self.app))) / self._columns)

    @property
    def _columns(self) -> int:
        return 2 if self.app.size.width >= _ROOMY else 1

    def render(self) -> Text:
        palette = Palette.of(self.app)
        width, height, columns = self.size.width, self.size.height, self._columns
        facts = self._facts(palette)
        if width < 70:
            return Text("\n").join(facts[:height])
        tall = math.ceil(len(facts) / columns)
        series, room = self._series, width - columns * (FIGURES + 2)
        begun, end = self.window or (series.width * series.begun, series.width * len(series.buckets))
        graphs = plotted(self._plots(palette), begun, end, room, min(height, max(self._sight, _LEAST)), palette)
        lines = []
        for at in range(height):
            line = Text(end="")
            for own in (at + number * tall for number in range(columns)):
                line.append_text(cell(facts[own] if at < tall and own < len(facts) else "", FIGURES)).append("  ")
            lines.append(line.append_text(graphs[at]) if at < len(graphs) else line)
        return Text("\n").join(lines)

    @property
    def _series(self) -> Series:
        known = self.state.models.get(self.model) or self.state.servers.get(self.model)
        return Series() if known is None else known.series

    @property
    def figures(self) -> str:
        """A line each, as a text."""
        return "\n".join(fact.plain.rstrip() for fact in self._facts(Palette.of(self.app)))

    def _facts(self, palette: Palette) -> list[Text]:
        if (model := self.state.models.get(self.model)) is not None:
            return model_facts(model, self.state, palette)
        if (server := self.state.servers.get(self.model)) is not None:
            return server_facts(server, self.state, palette)
        return [Text("no steps yet", style=palette.muted)]

    def _plots(self, palette: Palette) -> list[Plot]:
        if (model := self.state.models.get(self.model)) is not None:
            return model_plots(model, self.window, palette)
        if (server := self.state.servers.get(self.model)) is not None:
            return server_plots(server, self.window, palette)
        return []


class EngineView(View):
    """A panel for each model, as high as there is room; one that has more lines is scrolled."""

    FOCUS = "#models"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("z", "zoom(1)", "Zoom", key_display="z Z"),
        Binding("Z", "zoom(-1)", "Wider", show=False),
        Binding("less_than_sign", "pan(-1)", "Earlier, later", key_display="< >"),
        Binding("greater_than_sign", "pan(1)", "Later", show=False),
    ]

    def __init__(self, id: str) -> None:
        super().__init__(id)
        # Parts of the run that the graphs show one of, and by how many halves of it that ends before now.
        self._zoom, self._back = 1, 0
        self._panels: dict[str, ModelPanel] = {}

    def compose(self) -> ComposeResult:
        yield Static(id="engine-time")
        with VerticalScroll(id="models", can_focus=True):
            yield Static(id="no-models")

    def draw(self) -> None:
        box, known = self.query_one("#models"), (*self.state.models, *self.state.servers)
        names = sorted(known, key=lambda name: self.state.why_gone(name) is not None)
        for name in [name for name in self._panels if name not in names]:
            self._panels.pop(name).remove()
        for name in names:
            if name not in self._panels:
                self._panels[name] = ModelPanel(name)
                box.mount(self._panels[name])
        if list(self._panels) != names:
            self._panels = {name: self._panels[name] for name in names}
            for before, after in pairwise(self._panels.values()):
                box.move_child(after, after=before)
        palette = Palette.of(self.app)
        told = time_bar(self.state, self.size.width, palette)
        if (shortage := self.state.shortage) is not None:
            told.append(Text(f"⚠ {shortage_text(shortage)}", style=f"bold {palette.bad}"))
        time = self.query_one("#engine-time", Static)
        time.update(Text("\n").join(told))
        time.display = bool(told)
        nothing = self.query_one("#no-models", Static)
        nothing.display = not names
        why = "a replay of a saved run has no forwards of it" if self.state.replayed else "no model has been asked yet"
        nothing.update(Text(f" {why}", style=Palette.of(self.app).muted))
        space = self.size.height - len(told) - 1
        height = max(space // max(len(self._panels), 1), _LEAST + 2)
        for panel in self._panels.values():
            panel.show(self.state, self._window, space - 2)
            # With its border. What has no room on the screen is scrolled to.
            panel.styles.height = max(min(height, _TALLEST), panel.lines + 2)

    @property
    def _window(self) -> Window:
        """The part of the run that the graphs show; None for all of it."""
        if self._zoom == 1:
            return None
        state = self.state
        begun = 0.0 if state.loaded is None else min(state.loaded.at, state.now)
        width = (state.now - begun) / self._zoom
        last = max(state.now - self._back * width / 2, begun + width)
        return last - width, last

    def copies(self) -> Copies:
        panels = [(name, panel.figures) for name, panel in self._panels.items()]
        return [(f"figures of {one_line(name)}", told) for name, told in panels]

    def words(self) -> tuple[str, ...]:
        time = ("decode", "prefill", "verifier", "waits for server", "Python", "idle")
        local = (
            "KV",
            "prefix hits",
            "batch",
            "preemptions",
            "first token",
            "each token",
            "process",
            "KV leased",
            "head",
        )
        remote = ("in flight", "sent again", "prompt cache")
        return (*time, *(local if self.state.models else ()), *(remote if self.state.servers else ()))

    def action_zoom(self, by: int) -> None:
        """Shows half of the time, or twice as much."""
        self._zoom = min(max(self._zoom * 2 if by > 0 else self._zoom // 2, 1), _FINEST)
        self._back = self._back * 2 if by > 0 else self._back // 2
        self.draw()

    def action_pan(self, by: int) -> None:
        """Shows what was before, or after, by half of what is shown."""
        self._back = min(max(self._back - by, 0), 2 * (self._zoom - 1))
        self.draw()


def time_bar(state: RunState, width: int, palette: Palette) -> list[Text]:
    """Where the time went since the models were there, as one bar and in words."""
    shares = state.time_shares
    if not shares:
        return []
    colours = {name: getattr(palette, colour) for name, (_, colour) in TIME.items()}
    order = [name for name in SPENT if name in shares]
    bar, words, at = Text(), [Text()], 0.0
    for name in order:
        begun, at = at, at + shares[name]
        cells_ = round(at * (width - 2)) - round(begun * (width - 2))
        bar.append(TIME[name][0] * cells_, colours[name])
        word = Text.assemble((f"{TIME[name][0]} ", colours[name]), (f"{TIME_WORDS[name]} ", palette.muted))
        word.append(f"{figures.share(shares[name])}  ", palette.text)
        if words[-1].cell_len + word.cell_len > width:
            words.append(Text())
        words[-1].append_text(word)
    return [bar, *words]


def shortage_text(shortage: Shortage) -> str:
    """What memory was short of, and what helps."""
    gave = f"{shortage.gave_way:,} sequence{'s' * (shortage.gave_way != 1)} gave way and were computed again"
    if shortage.more is None:
        return f"memory is short: {gave}; give more with --kv-memory, or run fewer rows at once with --concurrency"
    more = max(math.ceil(shortage.more / (1 << 20)), 1)
    return f"memory is short: {gave}; give about {more:,} MiB more with --kv-memory, or a lower --concurrency"
