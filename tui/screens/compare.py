"""Compare: this run beside a saved one, row by row, while it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from qpdsl.grammar.printable import one_line
from qpdsl.tui.resilient_app import in_words
from qpdsl.tui.screens.rows import ANSWER
from qpdsl.tui.screens.view import Copies, View
from qpdsl.tui.state.compare import (
    Beside,
    OtherName,
    OtherRun,
    OtherRuns,
    RowPair,
    alike,
    answer_text,
    common_rows,
    compared,
    first_difference,
    knows_itself,
    others_of,
    plan_changes,
    plan_lines,
)
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.details import Details, Facts
from qpdsl.tui.widgets.line_list import LineList
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.panel import Panel
from qpdsl.tui.widgets.questions import ChoiceQuestion
from qpdsl.tui.widgets.table import Heading, TableColumn, as_wide_as, cell, fitted, row

COLUMNS = (
    TableColumn("id", "id", 24, right=False, weight=102),
    TableColumn("what", "outcome", 14, right=False, weight=101),
    TableColumn("here", "answer here", 0, right=False, weight=100, least=12),
    TableColumn("there", "answer there", 0, right=False, weight=99, least=12),
    TableColumn("reference", "right answer", 13, right=False, weight=60),
    TableColumn("tokens", "tok here", 8, weight=50),
    TableColumn("before", "tok there", 9, weight=40),
    TableColumn("differs", "first difference", 0, right=False, weight=20, least=34),
)
# Sign and colour of what became of a row.
_SIGNS = {"lost": ("▼", "bad"), "gained": ("▲", "good"), "other answer": ("~", "warn"), "same": ("=", "muted")}
# Characters before the place where two texts part.
_BEFORE = 24
Value = TypeVar("Value")


class PairLines(LineList):
    def __init__(self) -> None:
        super().__init__(id="pair-lines")
        self.state = RunState()
        self.columns: Sequence[TableColumn] = COLUMNS

    def show(self, state: RunState, pairs: Sequence[RowPair]) -> None:
        self.state = state
        texts = {
            "id": (one_line(pair.here.id) for pair in pairs),
            "here": (one_line(pair.here.answer or pair.here.why or "") for pair in pairs),
            "there": (one_line(pair.there.answer) for pair in pairs),
        }
        self.columns = [
            as_wide_as(column, texts[column.name], column.width or ANSWER) if column.name in texts else column
            for column in COLUMNS
        ]
        self.set_items(pairs, lambda pair: pair.here.id)

    def line(self, index: int, width: int, palette: Palette) -> Text:
        pair: RowPair = self.items[index]
        sign, colour = _SIGNS[pair.what]
        here, there = pair.here, pair.there
        mine = answer_text(self.state, here) if there.text else here.answer or here.why or ""
        theirs = there.text or there.answer
        values = {
            "id": Text(one_line(here.id), style=palette.text),
            "what": Text(f"{sign} {pair.what}", style=getattr(palette, colour)),
            "here": Text(one_line(here.answer or here.why or ""), style=palette.text),
            "there": Text(one_line(there.answer), style=palette.muted),
            "reference": Text(one_line(here.reference or ""), style=palette.muted),
            "tokens": Text(figures.count(here.tokens), style=palette.text),
            "before": Text(figures.count(there.tokens), style=palette.muted),
            "differs": Text(_around(mine, theirs) if mine != theirs else "", style=palette.muted),
        }
        return row(fitted(self.columns, width), values)


class CompareView(View):
    """`saved` is the run that this one is set beside. Enter shows a row's search, `d` both rows in full."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "details", "Both rows"),
        Binding("l", "plans", "Both plans"),
    ]

    class LastFound(Message):
        """See `last_run`."""

        def __init__(self, run: OtherRun) -> None:
            super().__init__()
            self.run = run

    class Chosen(Message):
        """The user wants to see this run beside another one."""

    def __init__(self, id: str, runs: OtherRuns | None) -> None:
        super().__init__(id)
        self.saved: OtherRun | None = None
        self._runs = runs
        # None as long as nobody has asked for them, or they are still being read.
        self._names: list[OtherName] | None = None
        self._asked = False
        self._comparison: Beside | None = None
        self._compared: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield Static(id="compare-head")
        yield Heading(COLUMNS)
        yield PairLines()
        yield Panel("d", id="compare-panel")
        yield Static(id="compare-foot", classes="foot")

    def show(self, saved: OtherRun) -> None:
        """Sets this run beside another one from now on."""
        self.saved = saved
        self.draw()

    def look_for_last(self, state: RunState) -> None:
        """Has it found which runs are saved, once it is known which of them is this one."""
        if self._runs is not None and not self._asked and knows_itself(state):
            self._asked = True
            self.run_worker(self._find_last(self._runs, state), name="saved runs")

    def ask(self) -> None:
        """Asks beside which saved run this one is to be set."""
        names, runs = self._names, self._runs
        if runs is None or not names:
            early = "the saved runs are still being read" if self._asked else "no row has begun yet"
            none = runs is None or names is not None
            self.app.notify("there is no other saved run to compare with" if none else early)
            return

        def chosen(at: int | None) -> None:
            if at is not None:
                self.run_worker(self._show_chosen(runs, names[at].name), name="saved runs")

        told = [f"{run.name}  {run.program}  {_right(run)}" for run in names]
        self.app.push_screen(ChoiceQuestion("compare with", told), chosen)

    async def _find_last(self, runs: OtherRuns, state: RunState) -> None:
        """Takes the last one that is alike and has rows of this one."""
        names: list[OtherName] = []
        with contextlib.suppress(Exception):
            names = await _aside(runs.names)
        self._names = others_of(state, names)
        for run in alike(state, names):
            saved = await self._read(runs, run.name)
            if saved is not None and common_rows(state, saved):
                self.post_message(self.LastFound(saved))
                if self.saved is None:
                    self.show(saved)
                return

    async def _show_chosen(self, runs: OtherRuns, name: str) -> None:
        if (saved := await self._read(runs, name)) is not None:
            self.show(saved)
            self.post_message(self.Chosen())

    async def _read(self, runs: OtherRuns, name: str) -> OtherRun | None:
        try:
            return await _aside(lambda: runs.read(name))
        except Exception as error:
            self.app.notify(f"run {name} cannot be read: {in_words(error)}")
            return None

    @property
    def pair(self) -> RowPair | None:
        pair: RowPair | None = self.query_one(PairLines).item
        return pair

    def draw(self) -> None:
        palette, state = Palette.of(self.app), self.state
        stamp = (id(self.saved), id(state), state.done)
        if self.saved is not None and stamp != self._compared:
            self._comparison, self._compared = compared(state, self.saved), stamp
        lines = self.query_one(PairLines)
        lines.show(state, self._comparison.pairs if self._comparison else ())
        heading = self.query_one(Heading)
        heading.show(lines.columns)
        heading.visible = self._comparison is not None
        self.query_one("#compare-head", Static).update(difference_line(self._comparison, palette))
        self.query_one("#compare-foot", Static).update(self._foot(palette))
        self._show_pair()

    def on_line_list_moved(self) -> None:
        self._show_pair()

    def on_line_list_entered(self) -> None:
        if self.pair is not None:
            self.post_message(self.Opened(self.pair.here.id))

    def action_details(self) -> None:
        if self.pair is None:
            self.app.notify(self._why_empty())
        else:
            self.app.push_screen(Details(self._facts(self.pair)))

    def action_plans(self) -> None:
        if self.saved is None:
            self.app.notify(self._why_empty())
        else:
            self.app.push_screen(Details(plan_facts(self.state, self.saved, Palette.of(self.app))))

    def copies(self) -> Copies:
        if self.saved is None:
            return []
        diff = f"qpdsl diff {self.saved.name} {self.state.saved}" if self.state.saved else ""
        told = [("command that compares the runs", diff)] if diff else []
        return [*told, ("name of the other run", self.saved.name)]

    def words(self) -> tuple[str, ...]:
        return ("gained", "lost", "other answer", "points", "interval", "p-value", "first difference")

    def _facts(self, pair: RowPair) -> Facts:
        mine = answer_text(self.state, pair.here)
        facts = Facts(f"{pair.here.id}  {pair.what}")
        facts.add("asked", pair.here.asked)
        facts.add("right answer", pair.here.reference)
        facts.add("here", pair.here.answer or pair.here.why)
        facts.add("there", pair.there.answer)
        facts.gap()
        if not pair.there.text:
            facts.add("first difference", "the other run saved no texts")
            return facts
        facts.add("first difference", _around(mine, pair.there.text))
        facts.gap()
        facts.add("text here", mine + "\n")
        facts.add("text there", pair.there.text + "\n")
        return facts

    def _why_empty(self) -> str:
        if self.saved is None:
            return "no other run is chosen: c chooses one"
        if common_rows(self.state, self.saved):
            return "no row has ended in both runs yet"
        return "the runs have no rows in common: c chooses another one"

    def _show_pair(self) -> None:
        palette, panel = Palette.of(self.app), self.query_one("#compare-panel", Panel)
        if self.saved is None or self.pair is None:
            panel.update(Text("" if self.saved is None else self._why_empty(), style=palette.muted))
            return
        panel.update(_side_by_side(self.state, self.pair, palette, max(panel.size.width, 20)))

    def _foot(self, palette: Palette) -> Text:
        if self.saved is None:
            return Text("")
        changed = sum(sign != "=" for sign, _, _ in plan_changes(plan_lines(self.state.plan), self.saved.plan))
        words = f"{plan_words(changed)}: l shows both" if changed else plan_words(changed)
        facts = [f"{name} {value}" for name, value in changed_facts(self.state, self.saved)]
        return Text(" " + "  ".join([words, *facts]), style=palette.warn if changed or facts else palette.muted)


async def _aside(work: Callable[[], Value]) -> Value:
    """What `work` gives, which a thread does: a slow disk keeps neither keys waiting nor, in the end, the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Value] = loop.create_future()

    def deliver(take: Callable[[], None]) -> None:
        # Nobody may wait any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if done.done() else take())

    def run() -> None:
        try:
            value = work()
        except Exception as error:
            deliver(lambda error=error: done.set_exception(error))  # type: ignore[misc]
        else:
            deliver(lambda: done.set_result(value))

    threading.Thread(target=run, name="qpdsl saved runs", daemon=True).start()
    return await done


def _right(run: OtherName) -> str:
    return f"{run.right / run.judged:.0%} of {run.judged:,} right" if run.judged else f"{run.rows:,} rows"


def plan_words(changed: int) -> str:
    """How many operators of a plan are other ones."""
    return f"{changed} operator{'s' * (changed != 1)} of the plan changed" if changed else "the plans are the same"


def changed_facts(state: RunState, saved: OtherRun) -> list[tuple[str, str]]:
    """What else was set up in another way."""
    begun, plan = state.begun, state.plan
    mine = {} if begun is None else {"seed": str(begun.seed), "grader": begun.grader, "input": begun.input}
    if plan is not None:
        mine |= {f"model {name}": id for name, id in plan.models.items()}
        mine |= {name: value for name, value in plan.parameters if value != "given"}
    return [
        (name, f"{one_line(value)}, there {one_line(saved.facts[name])}")
        for name, value in mine.items()
        if value and name in saved.facts and saved.facts[name] != value
    ]


def difference_line(comparison: Beside | None, palette: Palette) -> Text:
    """The difference, and how sure it is."""
    if comparison is None:
        return Text("beside no other run yet: c chooses one", style=palette.muted)
    text = Text.assemble(("with ", palette.muted), (one_line(comparison.saved.name), f"bold {palette.text}"))
    result = comparison.result
    if result is None:
        return text.append(f"  {len(comparison.pairs):,} rows in common, none graded in both", palette.muted)
    sure = result.is_significant()
    colour = palette.muted if not sure else palette.good if result.difference > 0 else palette.bad
    text.append(f"  {result.difference * 100:+.1f} points", f"bold {palette.text if not sure else colour}")
    text.append(f" ({result.interval.low * 100:+.1f} to {result.interval.high * 100:+.1f})", palette.text)
    text.append(f", p = {result.p_value:.2g}", colour)
    text.append(f"  {result.pairs:,} in common: {result.gained:,} gained, {result.lost:,} lost", palette.text)
    if comparison.tokens is not None:
        text.append(f"  tokens {comparison.tokens:+.0%}", palette.text)
    return text


def _side_by_side(state: RunState, pair: RowPair, palette: Palette, width: int) -> Text:
    """Both texts from shortly before they part."""
    mine = answer_text(state, pair.here) if pair.there.text else pair.here.answer or pair.here.why or ""
    theirs = pair.there.text or pair.there.answer
    at, half = first_difference(mine, theirs), (width - 2) // 2
    lines = []
    for name, text in (("here", mine), ("there", theirs)):
        start = max(at - _BEFORE, 0)
        told = Text.assemble((f"{name:<6}", palette.muted), ("…" if start else "", palette.muted))
        space = " " if text[start:at][-1:] == " " else ""
        told.append(one_line(text[start:at]) + space, palette.muted).append(one_line(text[at:]), f"bold {palette.text}")
        lines.append(told)
    if half < 40:
        return Text("\n").join(cell(line, width) for line in lines)
    return Text("\n").join(
        [*(cell(line, width) for line in lines), Text(one_line(pair.here.asked), style=palette.muted)]
    )


def _around(mine: str, theirs: str) -> str:
    """Where two texts part, in one line."""
    at = first_difference(mine, theirs)
    start = max(at - 8, 0)
    told = [one_line(("…" if start else "") + text[start : at + 12]) for text in (mine, theirs)]
    return f"{told[0]} | {told[1]}"


def plan_facts(state: RunState, saved: OtherRun, palette: Palette) -> Facts:
    """Both plans side by side, what changed lit."""
    facts = Facts(f"the plan here, and that of {saved.name}")
    colours = {"=": palette.muted, "~": palette.warn, "+": palette.good, "-": palette.bad}
    text = Text()
    for sign, here, there in plan_changes(plan_lines(state.plan), saved.plan):
        if sign == "=":
            text.append(f"= {here}\n", colours[sign])
            continue
        if here is not None:
            text.append(f"{'+' if there is None else '~'} here   {here}\n", colours[sign])
        if there is not None:
            text.append(f"{'-' if here is None else '~'} there  {there}\n", colours[sign])
    facts.add("operators", text)
    for name, value in changed_facts(state, saved):
        facts.add(name, value)
    return facts
