"""Plan: the operators as a tree, with what each has done so far beside what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Static

from qpdsl.executor.events.operator_counts import told_counts
from qpdsl.grammar.printable import one_line
from qpdsl.tui.screens.view import View
from qpdsl.tui.state.plan import OperatorTotals, PlanLine
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.details import Details, Facts
from qpdsl.tui.widgets.line_list import LineList
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.panel import Panel
from qpdsl.tui.widgets.table import Heading, TableColumn, fitted, row

_BAR = 6
_ROOM_FOR_HOW = 128
COLUMNS = (
    TableColumn("text", "operator", 0, right=False, weight=100, least=27),
    TableColumn("now", "now", 4, weight=6),
    TableColumn("rows", "rows", 7, weight=90),
    TableColumn("estimate", "est ≤", 7, weight=60),
    TableColumn("tokens", "tokens", 7, weight=70),
    TableColumn("cached", "cached", 6, weight=50),
    TableColumn("time", "time", 5, weight=80),
    TableColumn("bar", "", _BAR, right=False, weight=55),
    TableColumn("rule", "rule", 14, right=False, weight=3),
    TableColumn("choice", "choice", 16, right=False, weight=4),
    TableColumn("how", "how", 28, right=False, weight=2),
)


class PlanLines(LineList):
    """The tree with its figures."""

    def __init__(self) -> None:
        super().__init__(id="plan-lines")
        self.state = RunState()

    @property
    def columns(self) -> Sequence[TableColumn]:
        """The columns that have something to show."""
        lines = self.state.plan.lines if self.state.plan else ()
        empty = set()
        if not any(line.rule for line in lines):
            empty.add("rule")
        if not any(totals.choice for totals in self.state.operators.values()):
            empty.add("choice")
        if self.state.process is not None and self.state.process.place:
            # Replicas do not say what their rows are in.
            empty.add("now")
        if self.size.width < _ROOM_FOR_HOW:
            empty.add("how")
        return tuple(column for column in COLUMNS if column.name not in empty)

    def show(self, state: RunState) -> None:
        self.state = state
        self.set_count(len(state.plan.lines) if state.plan else 0)

    def line(self, index: int, width: int, palette: Palette) -> Text:
        assert self.state.plan is not None
        line = self.state.plan.lines[index]
        text = Text(line.branch, style=palette.faint)
        busy = bool(line.id) and self.state.totals(line.id).now > 0
        text.append(one_line(line.text), palette.text if line.id else palette.muted)
        if not line.id:
            return row(fitted(self.columns, width), {"text": text})
        totals = self.state.totals(line.id)
        part = time_share(self.state, line)
        values = {
            "text": text,
            "now": Text(f"●{totals.now}" if busy else "", style=palette.good),
            "rows": Text(figures.count(totals.rows_out) if totals.runs else figures.NONE, style=palette.text),
            "estimate": Text(estimate(self.state, line), style=palette.muted),
            "tokens": Text(figures.count(totals.tokens) if totals.tokens else "", style=palette.text),
            "cached": Text(
                "" if totals.cached_share is None else figures.share(totals.cached_share), style=palette.muted
            ),
            "time": Text("" if part is None else figures.share(part), style=palette.text),
            "bar": Text("" if part is None or part < 0.005 else figures.bar(part, _BAR), style=palette.accent),
            "rule": Text(one_line(line.rule or ""), style=palette.second),
            "choice": Text(one_line(totals.choice or ""), style=palette.second),
            "how": Text("" if line.implementation == "rows" else one_line(line.implementation), style=palette.muted),
        }
        return row(fitted(self.columns, width), values)


class PlanView(View):
    """Enter opens the details of an operator."""

    WIDE = 150

    def compose(self) -> ComposeResult:
        with Horizontal(classes="panes"):
            with Vertical():
                yield Heading(COLUMNS)
                yield PlanLines()
            with VerticalScroll(classes="side", can_focus=False):
                yield Static(id="plan-side")
        yield Panel("enter", id="plan-panel")
        yield Static(id="plan-foot", classes="foot")

    def draw(self) -> None:
        lines = self.query_one(PlanLines)
        lines.show(self.state)
        self.query_one(Heading).show(lines.columns)
        self._show_side()
        self.query_one("#plan-foot", Static).update(self._foot())

    def on_line_list_moved(self) -> None:
        self._show_side()

    def on_line_list_entered(self, event: LineList.Entered) -> None:
        facts = self._facts(event.index)
        if facts is not None:
            self.app.push_screen(Details(facts))

    def _show_side(self) -> None:
        facts = self._facts(self.query_one(PlanLines).cursor)
        palette = Palette.of(self.app)
        if facts is None:
            return
        if self.has_class("wide"):
            side = self.query_one("#plan-side", Static)
            side.update(facts.render(palette, max(side.size.width, 1)))
        else:
            self.query_one(Panel).update(facts.columns(palette, self.size.width - 2, 7))

    def _facts(self, index: int) -> Facts | None:
        plan = self.state.plan
        if plan is None or index >= len(plan.lines) or not plan.lines[index].id:
            return None
        return operator_facts(self.state, plan.lines[index])

    def _foot(self) -> Text:
        palette = Palette.of(self.app)
        plan = self.state.plan
        if plan is None:
            return Text(" the plan comes with the run's first event", style=palette.muted)
        word, rest = plan.permits
        text = Text(f" {word} ", style=palette.muted).append(one_line(rest), palette.text)
        for name, model in plan.models.items():
            text.append("  ").append(f"{one_line(name)} ", palette.muted).append(one_line(model), palette.text)
        begun = self.state.begun
        if begun is not None:
            rows = f"  {begun.concurrency:,} rows at once" if begun.concurrency > 1 else ""
            text.append(f"  seed {begun.seed}  {one_line(begun.device)}{rows}", palette.muted)
        if self.state.missed_events:
            text.append(f"  {self.state.missed_events:,} earlier events are in the sums alone", palette.muted)
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


def estimate(state: RunState, line: PlanLine) -> str:
    """The most rows that the operator can make for the instances that have begun."""
    if line.estimate is None:
        return "?"
    return figures.count(line.estimate * max(state.started + state.missed_rows, 1))


def _expected(state: RunState, line: PlanLine) -> Iterator[tuple[str, str]]:
    """What an operator was expected to take for a row of the input, and the last one with the whole run."""
    whole = state.estimate
    expected = None if whole is None else whole.operators.get(line.id)
    if whole is None or expected is None:
        return
    rounds = "" if expected.rounds is None else f", {expected.rounds:.1f} rounds"
    yield "expected rows", f"{expected.rows:.1f} a row of the input{rounds}"
    if expected.prompt_tokens is not None and expected.sampled_tokens is not None:
        cached = f", {expected.cached_tokens:,.0f} cached" if expected.cached_tokens else ""
        yield "expected tokens", f"{expected.prompt_tokens:,.0f} in{cached}, {expected.sampled_tokens:,.0f} out"
    if expected.seconds is not None:
        yield "expected time", figures.seconds(expected.seconds)
    if state.plan is not None and line is state.plan.lines[0]:
        clock = "" if whole.clock is None else f", times {whole.clock:.2g} as earlier runs took"
        yield "expected run", f"{figures.seconds(whole.seconds)}{clock}, {whole.in_flight:.0f} rows at once"
        yield "expected KV", figures.size(whole.kv_bytes)
        yield "expected by", one_line(f"{whole.source}; {whole.device}")


def operator_facts(state: RunState, line: PlanLine) -> Facts:
    totals = state.operators.get(line.id, OperatorTotals())
    part, expected = time_share(state, line), estimate(state, line)
    facts = Facts(one_line(line.text))
    facts.add("operator", f"{line.operator} {line.id}")
    facts.add("how", line.implementation)
    facts.add("keeps to", line.equivalence if line.repeats == "exact" else line.repeats)
    facts.add("made by rule", line.rule)
    facts.add("router's choice", totals.choice)
    facts.add("regret", None if totals.regret is None else f"{totals.regret:.3f}")
    facts.gap()
    facts.add("runs", f"{totals.runs:,}" + (f", {totals.now} now" if totals.now else ""))
    facts.add("rows in", f"{totals.rows_in:,}")
    facts.add("rows out", f"{totals.rows_out:,}  of at most {expected}")
    if totals.rows_in:
        facts.add("out per in", f"{totals.rows_out / totals.rows_in:.2f}")
    facts.gap()
    if totals.tokens:
        facts.add("prompt tokens", f"{totals.prompt_tokens:,}")
        facts.add("from the cache", f"{totals.cached_tokens:,}  {figures.share(totals.cached_share)}")
        facts.add("sampled tokens", f"{totals.sampled_tokens:,}")
    for name, expected_here in _expected(state, line):
        facts.add(name, expected_here)
    facts.add("seconds in it", f"{totals.seconds:,.2f} over all rows")
    facts.add("share", None if part is None else figures.share(part))
    if totals.runs:
        facts.add("a run", figures.seconds(totals.seconds / totals.runs))
    facts.gap()
    for words, figure in told_counts(totals.counts):
        facts.add(one_line(words), figure)
    facts.gap()
    facts.add("columns", ", ".join(f"{name}: {kind}" for name, kind in line.columns.items()))
    return facts
