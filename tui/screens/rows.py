"""Rows: the inputs as a table, to be sorted and filtered; the row of the cursor in full below."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from qpdsl.grammar.printable import one_line, shorten
from qpdsl.tui.screens.candidate import lost_text
from qpdsl.tui.screens.plan_boxes import failure_text
from qpdsl.tui.screens.view import Copies, View
from qpdsl.tui.state.compare import answer_text
from qpdsl.tui.state.run_state import STATUSES, RowState, RunState, Status
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.details import Details, Facts
from qpdsl.tui.widgets.line_list import LineList
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.panel import Panel
from qpdsl.tui.widgets.table import Heading, TableColumn, as_wide_as, fitted, row

COLUMNS = (
    TableColumn("number", "#", 6, weight=40),
    TableColumn("id", "id", 24, right=False, weight=85),
    TableColumn("status", "status", 9, right=False, weight=100),
    TableColumn("answer", "answer", 0, right=False, weight=95, least=12),
    TableColumn("reference", "right answer", 13, right=False, weight=30),
    TableColumn("lost", "had it", 14, right=False, weight=50),
    TableColumn("greedy", "greedy", 10, right=False, weight=10),
    TableColumn("score", "score", 6, weight=70),
    TableColumn("tokens", "tokens", 7, weight=65),
    TableColumn("seconds", "time", 7, weight=60),
    TableColumn("asked", "asked", 0, right=False, weight=5, least=50),
)
SIGNS: dict[Status, tuple[str, str]] = {
    "waiting": ("·", "faint"),
    "running": ("●", "good"),
    "done": ("✔", "text"),
    "right": ("✔", "good"),
    "wrong": ("≠", "warn"),
    "failed": ("✖", "bad"),
}
# So many reasons of failures are listed, each in so many cells at the least.
_REASONS, _REASON = 3, 48
# The most cells for an answer where other texts stand beside it.
ANSWER = 100
_CYCLE = ("number", "status", "score", "tokens", "seconds", "answer")


class RowLines(LineList):
    """The rows, filtered and sorted."""

    def __init__(self) -> None:
        super().__init__(id="row-lines")
        self.columns: Sequence[TableColumn] = COLUMNS

    def show(self, rows: list[RowState], columns: Sequence[TableColumn]) -> None:
        self.columns = columns
        self.set_items(rows, lambda row_state: row_state.id)

    @property
    def row(self) -> RowState | None:
        row_state: RowState | None = self.item
        return row_state

    def line(self, index: int, width: int, palette: Palette) -> Text:
        row_state: RowState = self.items[index]
        sign, colour = SIGNS[row_state.status]
        style = getattr(palette, colour)
        answer = (
            Text(one_line(row_state.why), style=palette.bad)
            if row_state.why
            else Text(one_line(row_state.answer or ""))
        )
        values = {
            "number": Text(f"{row_state.number:,}", style=palette.muted),
            "id": Text(one_line(row_state.id), style=palette.text),
            "status": Text(f"{sign} {row_state.status}", style=style),
            "answer": answer,
            "reference": Text(one_line(row_state.reference or ""), style=palette.muted),
            "lost": Text(lost(row_state), style=palette.warn),
            "greedy": Text(one_line(row_state.greedy or ""), style=palette.muted),
            "score": Text(
                "" if row_state.score is None else figures.score(row_state.score), style=palette.scale(row_state.score)
            ),
            "tokens": Text(figures.count(row_state.tokens) if row_state.tokens else "", style=palette.text),
            "seconds": Text(
                "" if row_state.seconds is None else figures.seconds(row_state.seconds), style=palette.muted
            ),
            "asked": Text(one_line(row_state.asked), style=palette.muted),
        }
        return row(fitted(self.columns, width), values)


class RowsView(View):
    """Enter shows how the row was searched."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("S", "reverse", "Reverse", show=False),
        Binding("d", "details", "Details"),
        Binding("escape", "clear", "Clear", show=False),
    ]

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.sorted_by = "number"
        self.downwards = False
        self.wanted = ""

    def compose(self) -> ComposeResult:
        yield Heading(COLUMNS)
        yield RowLines()
        yield Panel("d", id="row-panel")
        yield Input(
            id="row-filter",
            placeholder="words; status:failed, wrong, right, running, waiting; in:OPERATOR; esc clears",
            compact=True,
        )
        yield Static(id="row-foot", classes="foot")

    def on_mount(self) -> None:
        self.query_one(Input).display = False

    def draw(self) -> None:
        state = self.state
        rows = [row_state for row_state in state.rows.values() if matches(row_state, self.wanted)]
        columns = _told_columns(state)
        self.query_one(RowLines).show(ordered(rows, self.sorted_by, downwards=self.downwards), columns)
        self.query_one(Heading).show(columns, self.sorted_by, downwards=self.downwards)
        self.query_one("#row-foot", Static).update(self._foot(len(rows), state))
        self._show_row()

    def on_line_list_moved(self) -> None:
        self._show_row()

    def on_line_list_entered(self) -> None:
        row_state = self.query_one(RowLines).row
        if row_state is not None:
            self.post_message(self.Opened(row_state.id))

    def on_heading_clicked(self, event: Heading.Clicked) -> None:
        self.downwards = not self.downwards if event.column == self.sorted_by else False
        self.sorted_by = event.column
        self.draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.wanted = event.value
        self.draw()

    def on_input_submitted(self) -> None:
        self.query_one(Input).display = bool(self.wanted)
        self.take_focus()

    def show_those_in(self, operator: str) -> None:
        """Shows the rows that are in an operator, or failed there; all where there is none."""
        some = f"in:{operator}"
        if any(matches(row_state, some) for row_state in self.state.rows.values()):
            self.query_one(Input).value = some
            self.query_one(Input).display = True
        else:
            self.query_one(Input).value = ""
            self.query_one(Input).display = False

    def copies(self) -> Copies:
        row_state = self.query_one(RowLines).row
        return [] if row_state is None else row_copies(self.state, row_state)

    def words(self) -> tuple[str, ...]:
        return ("had it", "score", "greedy", "again")

    def action_filter(self) -> None:
        box = self.query_one(Input)
        box.display = True
        box.focus()

    async def action_clear(self) -> None:
        """Shows all rows again; where it does, the screen from which this one was opened."""
        box = self.query_one(Input)
        if not box.display:
            await self.app.run_action("up")
            return
        box.value = ""
        box.display = False
        self.take_focus()

    def action_sort(self) -> None:
        at = _CYCLE.index(self.sorted_by) if self.sorted_by in _CYCLE else -1
        self.sorted_by, self.downwards = _CYCLE[(at + 1) % len(_CYCLE)], False
        self.draw()

    def action_reverse(self) -> None:
        self.downwards = not self.downwards
        self.draw()

    def action_details(self) -> None:
        row_state = self.query_one(RowLines).row
        if row_state is not None:
            self.app.push_screen(Details(row_facts(self.state, row_state)))

    def _foot(self, shown: int, state: RunState) -> Text:
        palette = Palette.of(self.app)
        counts = dict.fromkeys(STATUSES, 0)
        for row_state in state.rows.values():
            counts[row_state.status] += 1
        text = Text(" ")
        if self.wanted:
            text.append(f"{shown:,} of {len(state.rows):,} shown  ", palette.warn)
        for status, count in counts.items():
            if count:
                sign, colour = SIGNS[status]
                text.append(f"{sign} ", getattr(palette, colour)).append(f"{count:,} {status}  ", palette.muted)
        if lost_rows := sum(row_state.lost is not None for row_state in state.rows.values()):
            text.append(f"{lost_rows:,} wrong had a right answer  ", palette.warn)
        groups = state.failures[:_REASONS]
        room = max((self.size.width - text.cell_len) // max(len(groups), 1) - 8, _REASON)
        for group in groups:
            why = shorten(failure_text(state, group.operator, group.reason), room)
            text.append(f"{len(group.rows):,}× {why}  ", palette.bad)
        return text

    def _show_row(self) -> None:
        palette = Palette.of(self.app)
        row_state = self.query_one(RowLines).row
        panel = self.query_one(Panel)
        if row_state is None:
            panel.update(Text("nothing matches" if self.wanted else "no rows yet", style=palette.muted))
            return
        text = Text()
        if row_state.why is not None:
            text.append(f"✖ {one_line(row_state.why)}", palette.bad)
        else:
            text.append("answer ", palette.muted).append(
                one_line(row_state.answer or figures.NONE), f"bold {palette.text}"
            )
            for name, value in (("right", row_state.reference), ("greedy", row_state.greedy)):
                if value is not None:
                    text.append(f"   {name} ", palette.muted).append(one_line(value), palette.text)
            if row_state.lost is not None:
                text.append(f"   {lost_text(row_state.lost, self.state.plan)}", palette.warn)
        text.append("\nagain ", palette.muted).append(again(self.state, row_state), palette.text)
        panel.update(text.append("\n").append(one_line(row_state.asked), palette.muted))


def _told_columns(state: RunState) -> Sequence[TableColumn]:
    """Those that have something to show: not every run has right answers, scores or answers without a search."""
    optional = ("reference", "lost", "greedy", "score")
    rows = state.rows.values()
    told = {name for name in optional if any(getattr(own, name) is not None for own in rows)}
    texts: dict[str, Iterable[str]] = {
        "number": [f"{len(rows):,} "],
        "id": (one_line(own.id) for own in rows),
        "answer": (one_line(own.why or own.answer or "") for own in rows),
    }
    return tuple(
        as_wide_as(column, texts[column.name], column.width or ANSWER) if column.name in texts else column
        for column in COLUMNS
        if column.name not in optional or column.name in told
    )


def lost(row_state: RowState) -> str:
    """Whether a wrong row had a right answer among its candidates, in few words."""
    if row_state.lost is None:
        return ""
    place = row_state.lost.place
    return "lost" if place is None else f"lost, {place} of {len(row_state.lost.ranking.ranked)}"


def row_copies(state: RunState, row_state: RowState) -> Copies:
    """What can be copied of a row: first the command that repeats it."""
    return [
        ("command that repeats the row", repeat_command(state, row_state)),
        ("answer", row_state.answer or ""),
        ("text of the answer", answer_text(state, row_state)),
        ("prompt", row_state.asked),
        ("why it failed", row_state.why or ""),
        ("id", row_state.id),
    ]


def repeat_command(state: RunState, row_state: RowState) -> str:
    """The command that shows the row alone again, with the same tokens."""
    if state.saved is not None:
        return shlex.join(["qpdsl", "replay", state.saved, "--row", row_state.id])
    if state.begun is None or state.plan is None:
        return ""
    texts = [name for name, value in state.plan.parameters if value == "given"]
    if len(texts) != 1 or not row_state.asked or row_state.asked.endswith("…"):
        return ""
    given = ["--set", f"{texts[0]}={row_state.asked}", "--seed", str(state.begun.seed)]
    models = [part for name, id_ in state.plan.models.items() for part in ("--model", f"{name}={id_}")]
    return shlex.join(["qpdsl", "run", state.plan.source, *given, *models])


def again(state: RunState, row_state: RowState) -> str:
    """Whether the same tokens come again for a row."""
    counts = row_state.counts
    if counts["requests"] or counts["replayed"]:
        repeats = "" if state.plan is None else state.plan.repeats
        told = [f"{counts['requests']:,} requests"] if counts["requests"] else []
        told += [f"{counts['replayed']:,} replayed of what was recorded"] if counts["replayed"] else []
        words = {"recorded": "only what was recorded comes again", "replayable": "the server repeats by its seed"}
        local = counts["draws"] and counts["requests"]
        return ", ".join([words.get(repeats, "mixed" if local else "by servers"), *told])
    ties = counts["near_ties"]
    if ties:
        return f"{ties:,} near tie{'s' * (ties != 1)}: another device or batch may draw otherwise there"
    if row_state.ended is None:
        return "not known yet"
    here = state.begun is None or state.begun.device == "cpu"
    return "the same tokens every time" if here else "no near ties: the same tokens"


def row_facts(state: RunState, row_state: RowState) -> Facts:
    facts = Facts(f"{row_state.id}  {SIGNS[row_state.status][0]} {row_state.status}")
    facts.add("error" if row_state.error else "no answer", row_state.why)
    if row_state.failed_in is not None and state.plan is not None and (line := state.plan.line(row_state.failed_in)):
        facts.add("failed in", line.text)
    facts.add("asked", row_state.asked)
    facts.add("answer", row_state.answer)
    facts.add("right answer", row_state.reference)
    facts.add("had it", lost(row_state) or None)
    facts.add("greedy", row_state.greedy)
    facts.gap()
    facts.add("score", None if row_state.score is None else figures.score(row_state.score))
    facts.add("tokens", f"{row_state.prompt_tokens:,} in, {row_state.sampled_tokens:,} out")
    facts.add("time", figures.seconds(row_state.seconds))
    facts.add("again", again(state, row_state))
    facts.add("repeat it", repeat_command(state, row_state) or None)
    for number, way in enumerate(row_state.tried, 1):
        sure = "" if way.support is None else f"{way.support:.0%} sure, "
        spent = f"{way.prompt_tokens:,} in, {way.sampled_tokens:,} out, {figures.seconds(way.seconds)}"
        follows = "ended there" if way.next is None else f"then {one_line(way.next)}"
        facts.add(f"tried {number}", f"{one_line(way.way)}: {sure}{spent}; {follows}")
    return facts


def matches(row_state: RowState, wanted: str) -> bool:
    """Whether every word occurs in the row; `status:` looks at the status alone, `in:` at the operators it is in."""
    for word in wanted.lower().split():
        if word.startswith("status:"):
            if not row_state.status.startswith(word.removeprefix("status:")):
                return False
        elif word.startswith("in:"):
            operator = word.removeprefix("in:")
            if operator not in (row_state.failed_in, *(inside.operator for inside in row_state.inside)):
                return False
        elif not any(
            word in (text or "").lower()
            for text in (row_state.id, row_state.asked, row_state.answer, row_state.why, row_state.status)
        ):
            return False
    return True


def ordered(rows: list[RowState], by: str, *, downwards: bool) -> list[RowState]:
    """The rows sorted by a column: those without a value come last either way, texts that are numbers sort by value."""
    with_value = [row_state for row_state in rows if _value(row_state, by) is not None]
    without = [row_state for row_state in rows if _value(row_state, by) is None]
    with_value.sort(key=lambda row_state: _comparable(_value(row_state, by)), reverse=downwards)
    return with_value + without


def _value(row_state: RowState, column: str) -> Any:
    """What a column sorts a row by; None where it has nothing there."""
    value = getattr(row_state, column)
    return STATUSES.index(value) if column == "status" else None if column == "tokens" and not value else value


def _comparable(value: Any) -> tuple[int, float, str]:
    with contextlib.suppress(ValueError, OverflowError):
        number = float(value)
        if number == number:
            return 0, number, ""
    return 1, 0.0, str(value)
