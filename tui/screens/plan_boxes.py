"""What stands below the plan: the operator of the cursor, rows that failed, rows at work, models and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from textwrap import wrap

from rich.text import Text
from textual.widget import Widget

from qpdsl.grammar.printable import cells, one_line
from qpdsl.tui.state.decisions import effects, kept_or_thrown
from qpdsl.tui.state.plan import OperatorTotals, PlanLine
from qpdsl.tui.state.run_state import NOW, RowState, RunState
from qpdsl.tui.state.server import ServerState
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.bars import cost
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.table import cell

# What makes a title and lines for a width; the title alone where there is nothing to tell.
Box = Callable[[int], list[Text]]
_LEAST = 36
_TREND = 16
_NAME = 11
# Lines for the reason of a failure.
_REASON = 2
# More rows at work are not made ready, however high the screen is.
_MOST = 40


class Boxes(Widget):
    """Boxes side by side, as many as there is room for; the others stand below each other in the last column."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id, classes="panel")
        self._boxes: list[Box] = []
        self._more: list[Box] = []

    def show(self, boxes: list[Box], more: list[Box]) -> None:
        """Those that are shown however little room there is, and those that are where there is some left."""
        self._boxes, self._more = boxes, more
        self.refresh()

    def render(self) -> Text:
        boxes, width, height = self._boxes, self.size.width, max(self.size.height, 1)
        count = min(max(width // _LEAST, 1), len(boxes) + len(self._more))
        if not count:
            return Text("")
        room = (width - 2 * (count - 1)) // count
        first = boxes[: count - 1]
        told = [_stacked(some, room, height) for some in ([[box] for box in first] + [boxes[len(first) :]])[:count]]
        told += [list[Text]() for _ in range(count - len(told))]
        for box in self._more:
            own = box(room)
            column = min(told, key=len)
            if not column or len(column) + len(own) < height:
                column += [Text(), *own] if column else own
        lines = []
        for at in range(height):
            line = Text(end="", no_wrap=True)
            for number, column in enumerate(told):
                line.append("  " if number else "").append_text(cell(column[at] if at < len(column) else "", room))
            lines.append(line)
        return Text("\n").join(lines)


def _stacked(boxes: Sequence[Box], width: int, height: int) -> list[Text]:
    """The lines of boxes in one column, each with as many as leave the others two."""
    told, lines = [box(width) for box in boxes], list[Text]()
    for number, own in enumerate(told):
        room = height - len(lines) - sum(min(len(other), 2) for other in told[number + 1 :])
        lines += own[: max(room, 1)]
        if len(own) > max(room, 1) > 1 and lines[-1].cell_len <= width - 2:
            lines[-1].append(" …")
    return lines[:height]


def operator_box(
    state: RunState, line: PlanLine, facts: Sequence[tuple[str, str]], palette: Palette, width: int
) -> list[Text]:
    """The operator of the cursor: what it does now, and facts about it."""
    totals = state.operators.get(line.id, OperatorTotals())
    lines = [_title(one_line(line.text), "", palette.text, palette, width)]
    now, room = rate(state, totals), max(width - _NAME, 12)
    now += f"  {figures.trend(totals.series.trend(state.now, min(_TREND, max(room - len(now) - 2, 1))))}"
    for name, value in [("now" if state.ended is None else "mean", now), *facts]:
        for at, part in enumerate(wrap(value, room)):
            lines.append(Text.assemble((f"{'' if at else name:<{_NAME}}", palette.muted), (part, palette.text)))
    return lines


def rate(state: RunState, totals: OperatorTotals) -> str:
    """How fast an operator was in the last seconds; over its whole time where the run has ended."""
    kinds = (("decode", "tok/s"), ("prefill", "prompt tok/s"), ("sequences", "rows/s"))
    for kind, unit in kinds:
        if totals.series.since(0.0, kind):
            if state.ended is None:
                return f"{figures.count(totals.series.rate(state.now, kind, NOW))} {unit}"
            begun = state.loaded.at if state.loaded is not None else 0.0
            per_second = totals.series.since(0.0, kind) / max(state.ended.at - begun, 1e-9)
            return f"{figures.count(per_second)} {unit}"
    return "nothing yet"


def failure_box(state: RunState, palette: Palette, width: int) -> list[Text]:
    """The rows that failed, by operator and reason."""
    groups = state.failures
    total = sum(len(group.rows) for group in groups)
    lines = [_title(f"✖ {total:,} failed or without an answer", "! shows the next", palette.bad, palette, width)]
    for group in groups:
        why = failure_text(state, group.operator, group.reason)
        count = f"{len(group.rows):>3,}× "
        for at, part in enumerate(wrap(why, max(width - len(count), 12), max_lines=_REASON, placeholder="…")):
            lines.append(Text.assemble((" " * len(count) if at else count, palette.bad), (part, palette.text)))
    return lines


def failure_text(state: RunState, operator: str | None, reason: str) -> str:
    """In which operator, and why."""
    line = None if state.plan is None or operator is None else state.plan.line(operator)
    return ("" if line is None else f"{one_line(line.text).partition(' ')[0]}: ") + one_line(reason)


def work_box(state: RunState, palette: Palette, width: int) -> list[Text]:
    """The rows at work, the longest first, with what they are in."""
    rows = state.at_work
    lines = [_title(f"● {len(rows):,} at work", "longest first", palette.good, palette, width)]
    return [*lines, *(_at_work(state, row, palette, width) for row in rows[:_MOST])]


def _at_work(state: RunState, row: RowState, palette: Palette, width: int) -> Text:
    doing = row.doing
    line = None if state.plan is None or doing is None else state.plan.line(doing.operator)
    time = figures.clock(state.now - (row.started or 0.0))
    text = cell(Text(one_line(row.id), style=palette.text), min(12, width // 3))
    text.append(f" r{doing.rounds[-1] + 1:<3}" if doing and doing.rounds else "     ", palette.muted)
    where = Text("" if line is None else one_line(line.text), style=palette.text)
    text.append_text(cell(where, max(width - text.cell_len - len(time) - 1, 1)))
    return text.append(f" {time}", palette.muted)


def model_box(state: RunState, palette: Palette, width: int) -> list[Text]:
    """The models: how fast they are, what waits for servers, and what these cost against its bound."""
    told = cost(state) or ("tokens" if state.ended is not None else "")
    lines = [_title("models", told, palette.text, palette, width)]
    for name, model in state.models.items():
        kind, unit = ("decode", "tok/s") if model.decode_tokens else ("prefill", "prompt tok/s")
        if state.ended is None:
            speed = f"{figures.count(model.series.rate(state.now, kind))} {unit}"
        else:
            speed = f"{figures.count(model.prefill_tokens)} in, {figures.count(model.decode_tokens)} out"
        lines.append(_named(name, speed, palette, width))
    for name, server in state.servers.items():
        there = f"{server.latest.in_flight:,} of {server.latest.limit:,} there"
        lines.append(_named(name, there, palette, width))
        if server.latest.retries or server.latest.again:
            colour = palette.warn if server.latest.again else palette.muted
            lines += [Text(f"  {part}", style=colour) for part in wrap(retries(server, state.now), max(width - 2, 12))]
    return lines


def boxes(state: RunState, palette: Palette) -> list[Box]:
    """Those that have something to tell, but for the operator's."""
    told: list[Box] = []
    if state.failures:
        told.append(partial(failure_box, state, palette))
    if state.ended is None and state.running:
        told.append(partial(work_box, state, palette))
    if state.models or state.servers:
        told.append(partial(model_box, state, palette))
    return told


def more_boxes(state: RunState, palette: Palette) -> list[Box]:
    """What the rules saved and where the tokens went, as far as there is something."""
    told: list[Box] = []
    if any(effect.words for effect in effects(state)):
        told.append(partial(rules_box, state, palette))
    if kept_or_thrown(state):
        told.append(partial(tokens_box, state, palette))
    return told


def rules_box(state: RunState, palette: Palette, width: int) -> list[Text]:
    """What each rule of the plan has saved; those of which nothing is counted are left out."""
    lines = [_title("saved by rules", "r tells more", palette.text, palette, width)]
    told = [effect for effect in effects(state) if effect.words]
    label = max(len(effect.name) for effect in told) + 2
    for effect in told:
        parts = wrap(effect.words.removeprefix("saved "), max(width - label, 12))
        names = [effect.name, *[""] * (len(parts) - 1)]
        lines += [
            Text.assemble((f"{name:<{label}}", palette.muted), (part, palette.text))
            for name, part in zip(names, parts, strict=True)
        ]
    return lines


def tokens_box(state: RunState, palette: Palette, width: int) -> list[Text]:
    """What became of the tokens that were sampled, and in which rounds."""
    fates = kept_or_thrown(state)
    sampled = sum(tokens for _, tokens in fates) or 1
    lines = [_title(f"{sampled:,} tokens sampled", "u tells more", palette.text, palette, width)]
    for word, tokens in fates:
        part = tokens / sampled
        figure = Text.assemble((f"{word:<16}", palette.muted), (f"{figures.share(part):>5} ", palette.text))
        lines.append(figure.append(figures.bar(part, min(max(width - 22, 4), _TREND)), palette.accent))
    return lines


def retries(server: ServerState, now: float) -> str:
    """What was sent again, and what waits to be."""
    latest = server.latest
    told = f"{latest.retries:,} sent again"
    if latest.again:
        told += f", {latest.again:,} now waiting: {one_line(latest.why or 'failed')}"
        if (left := server.resumes(now)) > 0:
            told += f", next in {figures.seconds(left)}"
    return told


def _title(words: str, hint: str, colour: str, palette: Palette, width: int) -> Text:
    text = Text(words, style=f"bold {colour}")
    space = width - text.cell_len - len(hint)
    return text.append(" " * space).append(hint, f"not bold {palette.muted}") if hint and space > 1 else text


def _named(name: str, value: str, palette: Palette, width: int) -> Text:
    """A model and a figure; of a long name its end, which tells models on one server apart."""
    room = max(width - len(value) - 1, 8)
    name = one_line(name)
    name = name if cells(name) <= room else f"…{name[-room + 1 :]}"
    return Text.assemble((name, palette.text), (value.rjust(max(width - cells(name), 0)), palette.muted))
