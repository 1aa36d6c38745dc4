"""Plan: the operators as a tree, with what each has done so far beside what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.geometry import Size
from textual.message import Message
from textual.widgets import Static

from qpdsl.executor.events.operator_counts import told_counts
from qpdsl.grammar.printable import one_line, shorten
from qpdsl.tui.screens.plan_boxes import Boxes, boxes, more_boxes, operator_box
from qpdsl.tui.screens.view import Copies, View
from qpdsl.tui.state.decisions import Expectation, decisions, expectation, rounds, spending
from qpdsl.tui.state.plan import OperatorTotals, PlanLine
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.details import Details, Facts
from qpdsl.tui.widgets.line_list import LineList
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.table import Heading, TableColumn, as_wide_as, fitted, row

_BAR = 6
_FLOW = 6
# From this height on there is room for more of what is below the plan.
_TALL = 36
# Lines that what is below the plan has at the least: of a low screen, of a tall one, of others.
_BELOW_LOW, _BELOW_TALL, _BELOW = 3, 12, 9
# Lines for the facts beside the plan, and the most cells for what an operator decided.
_SIDE, _DECIDED = 21, 44
COLUMNS = (
    TableColumn("text", "operator", 0, right=False, weight=100, least=27),
    TableColumn("now", "now", 7, right=False, weight=95),
    TableColumn("flow", "flow", _FLOW, right=False, weight=50),
    TableColumn("rows", "rows/pr.", 8, weight=90),
    TableColumn("estimate", "estimate", 12, right=False, weight=75),
    TableColumn("tokens", "tok/pr.", 7, weight=70),
    TableColumn("time", "time", 4, weight=80),
    TableColumn("bar", "", _BAR, right=False, weight=40),
    TableColumn("decisions", "decisions", 26, right=False, weight=45),
)


class PlanLines(LineList):
    """The tree with its figures."""

    def __init__(self) -> None:
        super().__init__(id="plan-lines")
        self.state = RunState()
        self.columns: Sequence[TableColumn] = COLUMNS
        self._hottest: str | None = None

    def show(self, state: RunState) -> None:
        self.state, self._hottest = state, state.hottest
        lines = state.plan.lines if state.plan else ()
        self.columns = _told_columns(state, lines)
        self.set_items(lines, lambda line: line.id)
        if not self.by_hand and self._hottest is not None:
            self.point(next(at for at, line in enumerate(lines) if line.id == self._hottest))

    def line(self, index: int, width: int, palette: Palette) -> Text:
        line: PlanLine = self.items[index]
        text = Text(line.branch, style=palette.faint)
        text.append(one_line(line.text), palette.text if line.id else palette.muted)
        layout = fitted(self.columns, width)
        if not line.id:
            return row(layout, {"text": text})
        state = self.state
        totals = state.operators.get(line.id, OperatorTotals())
        part = time_share(state, line)
        now = Text(f"●{totals.now} " if totals.now else "", style=palette.good)
        if line.id == self._hottest:
            now.append("hot", f"bold {palette.warn}")
        values = {
            "text": text,
            "now": now,
            "flow": Text("" if line.holds else flow(state, totals, _FLOW), style=palette.accent),
            "rows": Text(per_problem(state, totals.rows_out) if totals.runs else figures.NONE, style=palette.text),
            "estimate": _marked(estimate_text(state, line), palette),
            "tokens": Text(per_problem(state, totals.tokens) if totals.tokens else "", style=palette.text),
            "time": Text("" if part is None else figures.share(part), style=palette.text),
            "bar": Text("" if part is None or part < 0.005 else figures.bar(part, _BAR), style=palette.accent),
            "decisions": Text(decided(state, line), style=palette.second),
        }
        return row(layout, values)


def _told_columns(state: RunState, lines: Sequence[PlanLine]) -> Sequence[TableColumn]:
    """Those of which something is known, as wide as what they tell: replicas do not say what their rows are in."""
    own = [line for line in lines if line.id]
    told = {
        "estimate": [estimate_text(state, line) for line in own],
        "decisions": [decided(state, line) for line in own],
    }
    on_replicas = state.process is not None and state.process.place
    return [
        as_wide_as(column, told[column.name], _DECIDED) if column.name in told else column
        for column in COLUMNS
        if any(told.get(column.name, "?")) and not (on_replicas and column.name == "now")
    ]


class PlanView(View):
    """Enter shows the rows in an operator; `d` all of its figures."""

    WIDE = 150
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "details", "Details"),
    ]

    class OperatorOpened(Message):
        """The user wants to see the rows that went through an operator."""

        def __init__(self, operator: str) -> None:
            super().__init__()
            self.operator = operator

    def compose(self) -> ComposeResult:
        with Horizontal(classes="panes"):
            with Vertical():
                yield Heading(COLUMNS)
                yield PlanLines()
            with VerticalScroll(classes="side", can_focus=False):
                yield Static(id="plan-side")
        yield Boxes(id="plan-boxes")
        yield Static(id="plan-foot", classes="foot")

    def set_space(self, size: Size) -> None:
        super().set_space(size)
        self.set_class(size.height >= _TALL, "tall")

    def draw(self) -> None:
        lines = self.query_one(PlanLines)
        lines.show(self.state)
        # As high as the plan; what is below has the rest.
        below = _BELOW_TALL if self.has_class("tall") else _BELOW_LOW if self.has_class("low") else _BELOW
        height = max(lines.count + 1, _SIDE if self.has_class("wide") else 0)
        self.query_one(".panes").styles.height = max(min(height, self.size.height - 1 - below), 2)
        heading = self.query_one(Heading)
        heading.show(lines.columns)
        heading.visible = bool(lines.count)
        self._show_side()
        self.query_one("#plan-foot", Static).update(self._foot())

    def on_line_list_moved(self) -> None:
        self._show_side()

    def on_line_list_entered(self) -> None:
        if (line := self.selected) is not None:
            self.post_message(self.OperatorOpened(line.id))

    @property
    def selected(self) -> PlanLine | None:
        """The operator of the cursor."""
        line: PlanLine | None = self.query_one(PlanLines).item
        return line if line is not None and line.id else None

    def action_details(self) -> None:
        if (line := self.selected) is not None:
            self.app.push_screen(Details(operator_facts(self.state, line)))

    def copies(self) -> Copies:
        line = self.selected
        return [] if line is None else [("operator", line.text), ("id", line.id)]

    def words(self) -> tuple[str, ...]:
        line = self.selected
        told = ("now", "hot", "flow", "rows/pr.", "estimate", "tok/pr.", "time", "decisions")
        return told if line is None else (line.operator, *line.rules, *told)

    def _show_side(self) -> None:
        palette, line = Palette.of(self.app), self.selected
        wide = self.has_class("wide")
        if wide and line is not None:
            side = self.query_one("#plan-side", Static)
            side.update(operator_facts(self.state, line).render(palette, max(side.size.width, 1)))
        told = boxes(self.state, palette)
        if self.state.plan is None:
            told = [lambda width: [Text("the plan is shown once the run begins", style=palette.muted)]]
        if not wide and line is not None:
            told.insert(0, partial(operator_box, self.state, line, short_facts(self.state, line), palette))
        self.query_one(Boxes).show(told, more_boxes(self.state, palette))

    def _foot(self) -> Text:
        palette = Palette.of(self.app)
        plan = self.state.plan
        if plan is None:
            return Text()
        begun, missed, shares = self.state.begun, self.state.missed_events, self.state.time_shares
        time = ", ".join(
            f"{name} {figures.share(shares[name])}" for name in sorted(shares, key=lambda name: -shares[name])
        )
        parts = [("time", time)] if time else []
        parts += [plan.permits, *plan.models.items()]
        if begun is not None:
            parts += [("seed", str(begun.seed)), ("on", begun.device)]
            parts += [("at once", f"{begun.concurrency:,} rows")] if begun.concurrency > 1 else []
        if missed:
            parts.append(("in the sums alone", f"{missed:,} earlier events"))
        text = Text()
        for name, value in parts:
            part = Text.assemble((f" {one_line(name)} ", palette.muted), (f"{one_line(value)} ", palette.text))
            if text.cell_len + part.cell_len <= self.size.width:
                text.append_text(part)
        return text


def time_share(state: RunState, line: PlanLine) -> float | None:
    """The operator's share of all seconds that rows spent in operators; None where operators inside it do its work."""
    if line.holds or line.id not in state.operators:
        return None
    assert state.plan is not None
    own = state.operators[line.id].seconds
    inner = (state.operators.get(other.id) for other in state.plan.lines if other.id and not other.holds)
    total = sum(totals.seconds for totals in inner if totals is not None)
    return own / total if total else None


def _marked(estimate: str, palette: Palette) -> Text:
    figure, _, mark = estimate.partition(" ")
    return Text.assemble((figure, palette.muted), (f" {mark}", palette.warn))


def flow(state: RunState, totals: OperatorTotals, width: int) -> str:
    """The rows that an operator made over the time of the run, as a line."""
    return figures.trend(totals.series.trend(state.now, width))


def problems(state: RunState) -> int:
    """How many rows of the input have begun."""
    return max(state.started + state.missed_rows, 1)


def per_problem(state: RunState, count: int) -> str:
    return _short(count / problems(state))


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 100 else figures.count(value)


def _rows(count: str) -> str:
    return f"{count} row{'s' * (count != '1')}"


def decided(state: RunState, line: PlanLine) -> str:
    """What an operator decided, in a few words."""
    totals = state.operators.get(line.id, OperatorTotals())
    told = [f"by {one_line(totals.choice)}"] if totals.choice else []
    if (took := rounds(state, line)) is not None:
        told.append(f"rounds {took[0]:.1f}, most {took[1]}")
    return " · ".join([*told, *(decisions(totals) if not line.holds else ())])


def estimate_text(state: RunState, line: PlanLine) -> str:
    """The rows that were expected of it for a problem, and how far off that was; else the most that it can make."""
    expected = expectation(state, line)
    if expected is None:
        return "" if line.estimate is None else f"≤{line.estimate:,.0f}"
    return f"{_short(expected.expected)} {expected.mark}"


def _spread(expected: Expectation | None) -> str:
    """Where what was expected lies, where that is known, and how far off it was."""
    if expected is None:
        return ""
    ends = () if expected.between is None else tuple(map(_short, expected.between))
    return f"{_between(ends)} {expected.mark}".rstrip()


def _between(ends: Sequence[str]) -> str:
    """Both ends of a spread, where they do not look the same."""
    return f" ({'–'.join(ends)})" if len(set(ends)) > 1 else ""


def _expected(state: RunState, line: PlanLine) -> Iterator[tuple[str, str]]:
    """What an operator was expected to take for a row of the input, and the last one with the whole run."""
    whole = state.estimate
    expected = None if whole is None else whole.operators.get(line.id)
    if whole is None or expected is None:
        return
    tokens = expectation(state, line, "tokens")
    if expected.rounds is not None:
        yield "expected rounds", f"{expected.rounds:.1f}"
    if expected.prompt_tokens is not None and expected.sampled_tokens is not None:
        cached = f", {expected.cached_tokens:,.0f} cached" if expected.cached_tokens else ""
        told = f"{expected.prompt_tokens:,.0f} in{cached}, {expected.sampled_tokens:,.0f} out"
        both = "" if tokens is None or tokens.between is None else f", {_short(tokens.expected)} in all"
        yield "expected tokens", f"{told}{both}{_spread(tokens)}"
    if expected.seconds is not None:
        # Time goes by tokens.
        ends: list[str] = []
        if tokens is not None and tokens.between is not None and tokens.expected:
            ends = [figures.seconds(expected.seconds * end / tokens.expected) for end in tokens.between]
        yield "expected time", figures.seconds(expected.seconds) + _between(ends)
    if state.plan is not None and line is state.plan.lines[0]:
        clock = "" if whole.clock is None else f", times {whole.clock:.2g} as earlier runs took"
        yield "expected run", f"{figures.seconds(whole.seconds)}{clock}, {whole.in_flight:.0f} rows at once"
        yield "expected KV", figures.size(whole.kv_bytes)
        yield "expected by", one_line(f"{whole.source}; {whole.device}")


def operator_facts(state: RunState, line: PlanLine) -> Facts:
    totals = state.operators.get(line.id, OperatorTotals())
    facts = Facts(one_line(line.text))
    for name, value in short_facts(state, line):
        facts.add(name, value)
    facts.gap()
    facts.add("operator", f"{line.operator} {line.id}")
    facts.add("how", line.implementation)
    facts.add("keeps to", line.equivalence if line.repeats == "exact" else line.repeats)
    facts.add("regret", None if totals.regret is None else f"{totals.regret:.3f}")
    facts.gap()
    facts.add("runs", f"{totals.runs:,}" + (f", {totals.now} now" if totals.now else ""))
    facts.add("rows", f"{totals.rows_in:,} in, {totals.rows_out:,} out")
    if totals.tokens:
        facts.add("prompt tokens", f"{totals.prompt_tokens:,}, {totals.cached_tokens:,} from the cache")
        facts.add("sampled tokens", f"{totals.sampled_tokens:,}")
    for name, expected_here in _expected(state, line):
        facts.add(name, expected_here)
    facts.add("seconds in it", f"{totals.seconds:,.2f} over all rows")
    facts.gap()
    for words, figure in told_counts(totals.counts):
        facts.add(one_line(words), figure)
    for name, tool in sorted(totals.tools.items()):
        told = f"{tool.made:,} calls, {figures.seconds(tool.seconds / tool.values)} a value"
        known = f", {tool.values - tool.made:,} known" if tool.values > tool.made else ""
        facts.add(f"tool {one_line(name)}", told + known + (f", {tool.failed:,} failed" if tool.failed else ""))
    facts.gap()
    facts.add("columns", ", ".join(f"{name}: {kind}" for name, kind in line.columns.items()))
    return facts


def short_facts(state: RunState, line: PlanLine) -> list[tuple[str, str]]:
    """What is told of an operator where there is little room."""
    totals, part = state.operators.get(line.id, OperatorTotals()), time_share(state, line)
    expected = expectation(state, line)
    facts = []
    if totals.runs:
        facts.append(
            ("a problem", f"{_rows(per_problem(state, totals.rows_out))}, {per_problem(state, totals.tokens)} tokens")
        )
    if expected is not None:
        facts.append(("expected", f"{_rows(_short(expected.expected))}{_spread(expected)}"))
    elif line.estimate is not None:
        facts.append(("at most", f"{_rows(f'{line.estimate:,.0f}')} a problem"))
    if part is not None:
        facts.append(("time", f"{figures.share(part)}, {figures.seconds(totals.seconds / max(totals.runs, 1))} a run"))
    if told := decided(state, line):
        facts.append(("decided", told))
    if line.rules:
        facts.append(("rules", ", ".join(line.rules)))
    return facts


def usage_facts(state: RunState) -> Facts:
    """Where the tokens went: by operator, by round, by what became of them, by model."""
    facts = Facts("Where the tokens went")
    for group in spending(state):
        facts.gap()
        for spent in group:
            share = "" if spent.share is None else f" {figures.share(spent.share):>4}  "
            of = spent.of or figures.bar(spent.share or 0.0, 20)
            facts.add(shorten(one_line(spent.name), 22), f"{spent.tokens:>11,} {share}{of}".rstrip())
    return facts
