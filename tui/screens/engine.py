"""Engine: each model's memory, batches and tokens a second, over time."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from qpdsl.grammar.printable import one_line
from qpdsl.tui.screens.model_figures import model_facts, model_plots, server_facts, server_plots
from qpdsl.tui.screens.plots import FIGURES, Plot, plotted
from qpdsl.tui.screens.view import View
from qpdsl.tui.state.engine import Series
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.table import cell

_LEAST, _TALLEST = 8, 28
# Runs of fewer seconds have tenths of them on their axis.
_SHORT = 10.0


class ModelPanel(Widget):
    """One model, here or on a server: figures on the left, series over the whole run on the right."""

    def __init__(self, name: str) -> None:
        super().__init__(classes="model")
        self.model = name
        self.state = RunState()
        self.border_title = Text(one_line(name))

    def show(self, state: RunState) -> None:
        self.state = state
        series = self._series
        begun, end = series.width * series.begun, series.width * len(series.buckets)
        shown = figures.clock if end >= _SHORT else figures.seconds
        self.border_subtitle = f"{shown(begun)} to {shown(end)}"
        self.refresh()

    def on_resize(self) -> None:
        self.show(self.state)

    @property
    def lines(self) -> int:
        """How many figures there are, a line each."""
        return len(self._facts(Palette.of(self.app)))

    def render(self) -> Text:
        palette = Palette.of(self.app)
        width, height = self.size.width, self.size.height
        facts = self._facts(palette)
        left = FIGURES if width >= 70 else width
        lines = facts[:height]
        if width < 70:
            return Text("\n").join(lines)
        lines += [Text()] * (height - len(lines))
        graphs = plotted(self._plots(palette), width - left - 2, height, palette)
        return Text("\n").join(
            cell(line, left).append("  ").append_text(graph) for line, graph in zip(lines, graphs, strict=False)
        )

    @property
    def _series(self) -> Series:
        known = self.state.models.get(self.model) or self.state.servers.get(self.model)
        return Series() if known is None else known.series

    def _facts(self, palette: Palette) -> list[Text]:
        if (model := self.state.models.get(self.model)) is not None:
            return model_facts(model, self.state, palette)
        if (server := self.state.servers.get(self.model)) is not None:
            return server_facts(server, self.state, palette)
        return [Text("no steps yet", style=palette.muted)]

    def _plots(self, palette: Palette) -> list[Plot]:
        if (model := self.state.models.get(self.model)) is not None:
            return model_plots(model, palette)
        if (server := self.state.servers.get(self.model)) is not None:
            return server_plots(server, palette)
        return []


class EngineView(View):
    """A panel for each model, as high as there is room; one that has more lines is scrolled."""

    FOCUS = "#models"

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._panels: dict[str, ModelPanel] = {}

    def compose(self) -> ComposeResult:
        yield Static(id="engine-time", classes="foot")
        with VerticalScroll(id="models", can_focus=True):
            yield Static(id="no-models")

    def draw(self) -> None:
        box, names = self.query_one("#models"), (*self.state.models, *self.state.servers)
        for name in [name for name in self._panels if name not in names]:
            self._panels.pop(name).remove()
        for name in names:
            if name not in self._panels:
                self._panels[name] = ModelPanel(name)
                box.mount(self._panels[name])
        self.query_one("#engine-time", Static).update(_time_line(self.state, Palette.of(self.app)))
        nothing = self.query_one("#no-models", Static)
        nothing.display = not names
        nothing.update(Text(" no model has been asked yet", style=Palette.of(self.app).muted))
        height = max((self.size.height - 1) // max(len(self._panels), 1), _LEAST + 2)
        for panel in self._panels.values():
            panel.show(self.state)
            # With its border. What has no room on the screen is scrolled to.
            panel.styles.height = max(min(height, _TALLEST), panel.lines + 2)

    def on_resize(self) -> None:
        self.draw()


def _time_line(state: RunState, palette: Palette) -> Text:
    """Where the time went since the models were there, and whether memory is short."""
    text = Text(" ")
    shares = state.time_shares
    for name, share in shares.items():
        text.append(f"{one_line(name)} ", palette.muted).append(f"{figures.share(share)}  ", palette.text)
    if shares:
        rest = "waits and Python" if state.servers else "Python"
        text.append(f"{rest} ", palette.muted).append(f"{figures.share(1 - sum(shares.values()))}  ", palette.text)
    if gone := sum(model.latest.preemptions for model in state.models.values()):
        text.append(f"⚠ memory is short: {gone:,} gave way and were computed again", f"bold {palette.bad}")
        text.append("  more: --kv-memory, fewer rows at once: --concurrency", palette.muted)
    return text
