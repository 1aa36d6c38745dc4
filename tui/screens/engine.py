"""Engine: each model's memory, batches and tokens a second, over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widget import Widget

from qpdsl.grammar.printable import one_line
from qpdsl.tui.screens.view import View
from qpdsl.tui.state.engine import Bucket, ModelState, Series
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.table import cell

_LEAST, _TALLEST = 8, 28
_WIDEST = 4
_ARMS = ("dense", "rows", "union")
_ROUTER = (*(f"{arm}_steps" for arm in _ARMS), "routed_seconds", "router_seconds", "router_regret")
_MEMORY = ("weight_bytes", "activation_bytes", "resident_bytes")
_SHOWN_ELSEWHERE = ("seconds", "sequences", "capacity", *_MEMORY, *_ROUTER)


class ModelPanel(Widget):
    """One model: figures on the left, series on the right."""

    def __init__(self, name: str) -> None:
        super().__init__(classes="model")
        self.model = name
        self.state = RunState()
        self.border_title = Text(one_line(name))

    def show(self, state: RunState) -> None:
        self.state = state
        model = state.models.get(self.model)
        series = model.series if model is not None else Series()
        shown = series.width * min(len(series.buckets) - series.begun, max(self.size.width - 36, 1))
        self.border_subtitle = f"the last {figures.clock(shown)}"
        self.refresh()

    def on_resize(self) -> None:
        self.show(self.state)

    @property
    def lines(self) -> int:
        """How many figures there are, a line each."""
        model = self.state.models.get(self.model)
        return 1 if model is None else len(_facts(model, self.state, Palette.of(self.app)))

    def render(self) -> Text:
        model = self.state.models.get(self.model)
        palette = Palette.of(self.app)
        if model is None:
            return Text("no steps yet", style=palette.muted)
        width, height = self.size.width, self.size.height
        facts = _facts(model, self.state, palette)
        left = 34 if width >= 70 else width
        lines = facts[:height]
        if width < 70:
            return Text("\n").join(lines)
        graphs = _graphs(model, width - left - 2, height, palette)
        lines += [Text()] * (height - len(lines))
        return Text("\n").join(
            cell(line, left).append("  ").append_text(graph) for line, graph in zip(lines, graphs, strict=False)
        )


class EngineView(View):
    """A panel for each model, as high as there is room."""

    FOCUS = "#models"

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._panels: dict[str, ModelPanel] = {}

    def compose(self) -> ComposeResult:
        yield VerticalScroll(id="models", can_focus=True)

    def draw(self) -> None:
        box = self.query_one("#models")
        for name in [name for name in self._panels if name not in self.state.models]:
            self._panels.pop(name).remove()
        for name in self.state.models:
            if name not in self._panels:
                self._panels[name] = ModelPanel(name)
                box.mount(self._panels[name])
        height = max((self.size.height) // max(len(self._panels), 1), _LEAST + 2)
        for panel in self._panels.values():
            panel.show(self.state)
            # With its border. What has no room on the screen is scrolled to.
            panel.styles.height = max(min(height, _TALLEST), panel.lines + 2)


def _facts(model: ModelState, state: RunState, palette: Palette) -> list[Text]:
    latest = model.latest
    share = latest.pages_held / latest.pages if latest.pages else 0.0
    colour = palette.bad if share > 0.9 else palette.warn if share > 0.7 else palette.accent
    facts = [
        Text.assemble(
            _label("KV pages", palette),
            (f"{figures.share(share):>4} ", f"bold {palette.text}"),
            cell(Text(figures.bar(share, 10), style=colour), 10),
            (" ⚠ full" if share > 0.9 else "", palette.bad),
        ),
        _fact("", f"{latest.pages_held:,} of {latest.pages:,}", palette),
        _fact("most held", f"{model.most_pages:,}", palette),
    ]
    prefix = _prefix_share(model, state)
    if prefix is not None:
        facts.append(_fact("prefix hits", figures.share(prefix), palette))
    sequences, capacity = latest.others.get("sequences"), latest.others.get("capacity")
    if sequences is not None and capacity:
        facts.append(_fact("batch", f"{sequences:.0f}/{capacity:.0f}, {latest.waiting:,} waiting", palette))
    facts += [
        _fact("steps", f"{model.steps:,}, {figures.seconds(model.busy)} busy", palette),
        _fact("tokens", f"{figures.count(model.prefill_tokens)} in, {figures.count(model.decode_tokens)} out", palette),
        _fact("preemptions", f"{latest.preemptions:,}", palette),
    ]
    # The percentiles 50, 95 and 99.
    for title, waits in (("first token", model.first_token), ("each token", model.between_tokens)):
        if waits:
            facts.append(_fact(title, f"{'/'.join(map(_milliseconds, waits))} ms", palette))
    facts += [_fact(name, value, palette) for name, value in _memory(model, state)]
    facts += [
        _fact(one_line(name.replace("_", " ")), _number(value), palette)
        for name, value in latest.others.items()
        if name not in _SHOWN_ELSEWHERE
    ]
    drafted, accepted = latest.others.get("drafted"), latest.others.get("accepted")
    if drafted and accepted is not None:
        facts.append(_fact("acceptance", figures.share(accepted / drafted), palette))
    facts += [_fact(name, value, palette) for name, value in _router(latest.others)]
    regrets = [totals.regret for totals in state.operators.values() if totals.regret is not None]
    if regrets:
        facts.append(_fact("router regret", f"{sum(regrets):.3f}", palette))
    return facts


def _memory(model: ModelState, state: RunState) -> Iterator[tuple[str, str]]:
    """The memory of this model beside its pages, and what the process holds besides all; nothing where not told."""
    others = model.latest.others
    resident = others.get("resident_bytes", 0.0)
    if not resident:
        return
    activations = others.get("activation_bytes", 0.0)
    yield "weights", figures.size(others.get("weight_bytes", 0.0))
    yield "activations", figures.size(activations)
    of_models = sum(
        latest.others.get("weight_bytes", 0.0) + latest.others.get("leased_bytes", 0.0)
        for latest in (other.latest for other in state.models.values())
    )
    yield "process", figures.size(resident)
    yield "of it other", figures.size(max(resident - of_models - activations, 0.0))


def _router(others: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """How often each arm computed the head, what choosing took a step, and what better choices would have saved."""
    steps = {arm: others.get(f"{arm}_steps", 0.0) for arm in _ARMS}
    total = sum(steps.values())
    if total:
        yield from ((f"{arm} steps", f"{own:,.0f}, {figures.share(own / total)}") for arm, own in steps.items() if own)
        yield "routing", f"{others.get('router_seconds', 0.0) / total * 1e6:.0f} µs a step"
        if regret := others.get("router_regret"):
            yield "routed regret", figures.seconds(regret)


def _prefix_share(model: ModelState, state: RunState) -> float | None:
    """The share of prompt tokens found in the prefix cache, over the operators of this model; None without any."""
    names = {name for name, id_ in (state.plan.models.items() if state.plan else ()) if id_ == model.name}
    asked = cached = 0
    for line in state.plan.lines if state.plan else ():
        words = line.text.split()
        if len(words) > 1 and words[0] in ("generate", "score") and words[1].strip('"') in names | {model.name}:
            totals = state.totals(line.id)
            asked += totals.prompt_tokens
            cached += totals.cached_tokens
    return cached / asked if asked else None


def _graphs(model: ModelState, width: int, height: int, palette: Palette) -> list[Text]:
    series = model.series
    buckets = series.buckets[series.begun :][-max(width, 1) :]
    # A short run is drawn wider.
    wide = min(max(width // max(len(buckets), 1), 1), _WIDEST)
    buckets = [bucket for bucket in buckets for _ in range(wide)]
    width_ = series.width

    def rates(kind: str) -> list[float]:
        return [getattr(bucket, kind) / width_ for bucket in buckets]

    capacity = model.latest.others.get("capacity") or None
    pages = float(model.latest.pages) or None
    shown = [
        ("decode tok/s", rates("decode"), palette.good, None, figures.count(max(rates("decode"), default=0))),
        ("prefill tok/s", rates("prefill"), palette.accent, None, figures.count(max(rates("prefill"), default=0))),
        ("batch", [_occupancy(bucket) for bucket in buckets], palette.second, capacity, _top(capacity)),
        ("KV pages", [float(bucket.pages) for bucket in buckets], palette.warn, None, _top(model.most_pages or pages)),
    ]
    # A verifier decodes nothing.
    shown = [series for series in shown if any(series[1])] or shown
    share, spare = divmod(height, len(shown))
    lines: list[Text] = []
    for number, (title, values, colour, top, most) in enumerate(shown):
        tall = max(share - 1 + (number < spare), 1)
        lines.append(_title(title, most, width, palette))
        lines += [Text(line, style=colour) for line in figures.graph(values, width, tall, top)]
    return lines + [Text()] * (height - len(lines))


def _title(title: str, most: str, width: int, palette: Palette) -> Text:
    dots = max(width - len(title) - len(most) - 6, 0)
    line = Text.assemble((title, palette.text), (f" {'·' * dots} ", palette.faint))
    return line.append("top ", palette.muted).append(most, palette.text)


def _top(value: float | None) -> str:
    return figures.count(value or 0)


def _occupancy(bucket: Bucket) -> float:
    return bucket.sequences / bucket.steps if bucket.steps else 0.0


def _label(name: str, palette: Palette) -> tuple[str, str]:
    return f"{name:<13} ", palette.muted


def _fact(name: str, value: str, palette: Palette) -> Text:
    return Text.assemble(_label(name, palette), (value, palette.text))


def _milliseconds(value: float) -> str:
    return f"{value * 1e3:.1f}" if value < 0.0995 else f"{value * 1e3:,.0f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.3f}"
