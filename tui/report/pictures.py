"""A run over time, and accuracy against tokens, as pictures that are as wide as their boxes, whatever these are.

Lines are drawn in SVG that is stretched, letters are HTML that is not; what a picture says is also said in words.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qpdsl.executor.events import events
from qpdsl.executor.events.events import EngineFigures, Event
from qpdsl.tui.report.elements import folded, table, text
from qpdsl.tui.state.engine import ModelState
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.widgets import figures

# More forwards than this cannot be told apart in a picture: neighbours become one.
_STEPS = 1500
# The height of all pictures in their own unit, and their width.
_HIGH, _WIDE = 100.0, 1000.0
# Marks of an axis at the most.
_TICKS = 4
_COLOURS = ("accent", "warn", "second", "good")


@dataclass(slots=True)
class _Step:
    """One forward, or some neighbours: times in seconds, `sequences` the most of any."""

    begun: float
    seconds: float
    prefill: int
    decode: int
    sequences: float


class Forwards:
    """The forwards of each model."""

    def __init__(self) -> None:
        self._of: dict[str, list[_Step]] = {}

    def add(self, event: Event) -> None:
        if isinstance(event, events.EngineStepped):
            report = event.report
            assert isinstance(report, EngineFigures)
            seconds = report.others.get("seconds", 0.0)
            sequences = report.others.get("sequences", 0.0)
            own = self._of.setdefault(report.model, [])
            own.append(_Step(event.at - seconds, seconds, report.prefill_tokens, report.decode_tokens, sequences))
            if len(own) > 2 * _STEPS:
                self._of[report.model] = _merged(own)

    def picture(self, state: RunState) -> str:
        """A lane for each model, in which a box is a forward and its height the sequences in the batch."""
        span, most = _Span.of(state), max((step.sequences for own in self._of.values() for step in own), default=1.0)
        lanes = "".join(_lane(state.models[name], own, most or 1.0, span) for name, own in self._of.items())
        keys = _legend([("accent", "mostly decode"), ("warn", "mostly prefill")])
        return f"{lanes}{span.axis}{keys}" if lanes else ""


@dataclass(frozen=True, slots=True)
class _Span:
    """The time that pictures show: from when the models were there, `begun`, for so many seconds."""

    begun: float
    seconds: float

    @classmethod
    def of(cls, state: RunState) -> _Span:
        begun = 0.0 if state.loaded is None else min(state.loaded.at, state.now)
        return cls(begun, state.now - begun or 1.0)

    def x(self, time: float) -> float:
        return _WIDE * min(max((time - self.begun) / self.seconds, 0.0), 1.0)

    @property
    def axis(self) -> str:
        """Round times below a picture."""
        least = self.seconds / _TICKS
        steps = [unit * factor for unit in (0.01, 0.1, 1, 10) for factor in (1, 2, 5)]
        steps += [60 * minutes for minutes in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1440)]
        step = next((step for step in steps if step >= least), least)
        first, last = math.ceil(self.begun / step - 1e-9), math.floor((self.begun + self.seconds) / step + 1e-9)
        shown = figures.seconds if self.begun + self.seconds < 60 else figures.clock
        times = [at * step for at in range(first, last + 1)]
        ticks = (f'<span style="left:{self.x(time) / 10:.1f}%">{shown(time) if time else 0}</span>' for time in times)
        return f'<div class="ticks" aria-hidden="true">{"".join(ticks)}</div>'


def _lane(model: ModelState, steps: Sequence[_Step], most: float, span: _Span) -> str:
    paths = {"accent": "", "warn": ""}
    for step in steps:
        tall = max(_HIGH * step.sequences / most, 3.0)
        x, wide = span.x(step.begun), max(_WIDE * step.seconds / span.seconds, 0.7)
        paths["warn" if step.prefill > step.decode else "accent"] += f"M{x:.1f},100v-{tall:.0f}h{wide:.1f}v{tall:.0f}z"
    said = f"{model.steps:,} forwards, {model.prefill_tokens:,} tokens prefilled and {model.decode_tokens:,} decoded"
    said += f", at most {max(step.sequences for step in steps):,.0f} sequences at once"
    boxes = "".join(f'<path class="forward {colour}" d="{path}"/>' for colour, path in paths.items() if path)
    return f'<p class="label">{text(model.name)} <span>{said}</span></p>{_picture(boxes, model.name, "lane")}'


def _merged(steps: list[_Step]) -> list[_Step]:
    """Pairs of neighbours as one."""
    merged = []
    for at in range(0, len(steps), 2):
        first, second = steps[at], steps[min(at + 1, len(steps) - 1)]
        if first is not second:
            end, most = second.begun + second.seconds, max(first.sequences, second.sequences)
            sums = first.prefill + second.prefill, first.decode + second.decode
            first = _Step(first.begun, end - first.begun, *sums, most)
        merged.append(first)
    return merged


def memory(state: RunState) -> str:
    """The pages of keys and values that each model held over time."""
    models = [model for model in state.models.values() if model.most_pages]
    most = max((model.most_pages for model in models), default=0)
    lines, told, span = "", list[tuple[str, str]](), _Span.of(state)
    for at, model in enumerate(models):
        held = [(min((n + 1) * model.series.width, state.now), b.pages) for n, b in enumerate(model.series.buckets)]
        points = "".join(f"L{span.x(time):.1f},{_HIGH - _HIGH * pages / most:.1f}" for time, pages in held)
        colour = _COLOURS[at % len(_COLOURS)]
        lines += f'<path class="curve {colour}{" dashed" * (at > 0)}" d="M0,100{points}"/>'
        latest, said = model.latest, f"{model.name}: at most {model.most_pages:,} of {model.latest.pages:,} pages"
        told.append((colour, f"{said}, {latest.preemptions:,} preemptions{_waits(model)}"))
    picture = _picture(lines, "pages held over time", "area") + span.axis
    return f'<p class="label">{most:,} pages</p>{picture}{_legend(told)}' if models else ""


def _waits(model: ModelState) -> str:
    """How long samples waited for their tokens."""
    told = ""
    for words, waits in (("first token", model.first_token), ("each token", model.between_tokens)):
        if waits:
            told += f", {words} p50 {figures.seconds(waits[0])} p99 {figures.seconds(waits[-1])}"
    return told


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows with a right answer that took about as many `tokens`: the shares that are `right`, and `greedy`'s."""

    rows: int
    tokens: float
    right: float
    greedy: float | None


def accuracy(state: RunState) -> str:
    """Rows in up to ten groups by the tokens sampled for them, and how many of each group are right."""
    rows = sorted((row for row in state.rows.values() if row.correct is not None), key=lambda row: row.sampled_tokens)
    count, groups = min(10, max(len(rows) // 8, min(len(rows) // 2, 4), min(len(rows), 1))), []
    for at in range(count):
        own = rows[at * len(rows) // count : (at + 1) * len(rows) // count]
        right = statistics.mean(row.correct is True for row in own)
        greedy = [row.greedy_correct for row in own if row.greedy_correct is not None]
        mean = statistics.mean(row.sampled_tokens for row in own)
        groups.append(_Group(len(own), mean, right, statistics.mean(greedy) if greedy else None))
    # A line needs two points: what one group says stands at the top of the page.
    if len(groups) < 2:
        return ""
    most, drawn = groups[-1].tokens or 1.0, ""
    for colour, shares in (("good", [g.right for g in groups]), ("muted", [g.greedy for g in groups])):
        points = [(g.tokens, share) for g, share in zip(groups, shares, strict=True) if share is not None]
        places = [f"{950 * tokens / most:.1f},{95 - 90 * share:.1f}" for tokens, share in points]
        drawn += f'<path class="curve {colour}" d="M{"L".join(places)}"/>' if places else ""
        drawn += "".join(f'<path class="dot {colour}" d="M{place}h0"/>' for place in places)
    cells = [[f"{g.tokens:,.0f}", figures.share(g.right), figures.share(g.greedy), f"{g.rows:,}"] for g in groups]
    head = ["tokens a row", "right", "greedy", "rows"]
    keys = _legend([("good", "this program"), ("muted", "greedy decoding on the same rows")])
    ticks = "".join(f'<span style="left:{95 * part:.1f}%">{most * part:,.0f}</span>' for part in (0, 0.5, 1))
    picture = f'<p class="label">100% right</p>{_picture(drawn, "accuracy against tokens", "area")}'
    axis = f'<div class="ticks" aria-hidden="true">{ticks}</div><p class="hint">sampled tokens a row</p>'
    return (
        picture
        + axis
        + keys
        + folded("as a table", table("Accuracy by tokens", head, cells, numbers=range(4), small=True))
    )


def _picture(drawn: str, said: str, kind: str) -> str:
    size = f'viewBox="0 0 {_WIDE:.0f} {_HIGH:.0f}" preserveAspectRatio="none"'
    return f'<svg class="{kind}" {size} role="img" aria-label="{text(said)}">{drawn}</svg>'


def _legend(keys: Iterable[tuple[str, str]]) -> str:
    told = "".join(f'<li><span class="key {colour}"></span> {text(words)}</li>' for colour, words in keys)
    return f'<ul class="legend">{told}</ul>'
