"""Rows: the inputs as a table, to be sorted and filtered; the row of the cursor in full below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input, Static

from qpdsl.tui.screens.view import View
from qpdsl.tui.state.rows import STATUSES, RowState, Status
from qpdsl.tui.state.run import RunState
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.columns import Column, fitted, one_line, row
from qpdsl.tui.widgets.details import Details, Facts
from qpdsl.tui.widgets.line_list import Lines
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.table_heading import Heading

COLUMNS = (
    Column("number", "#", 6, weight=40),
    Column("id", "id", 14, right=False, weight=85),
    Column("status", "status", 9, right=False, weight=100),
    Column("answer", "answer", 0, right=False, weight=95, least=12),
    Column("reference", "right answer", 13, right=False, weight=30),
    Column("greedy", "greedy", 10, right=False, weight=10),
    Column("score", "score", 6, weight=70),
    Column("tokens", "tokens", 7, weight=65),
    Column("seconds", "time", 7, weight=60),
    Column("asked", "asked", 0, right=False, weight=5, least=50),
)
SIGNS: dict[Status, tuple[str, str]] = {
    "waiting": ("·", "faint"),
    "running": ("▶", "accent"),
    "done": ("✔", "text"),
    "right": ("✔", "good"),
    "wrong": ("✖", "warn"),
    "failed": ("!", "bad"),
}
_KEYS: dict[str, Callable[[RowState], Any]] = {
    "number": lambda each: each.number,
    "id": lambda each: each.id,
    "status": lambda each: STATUSES.index(each.status),
    "answer": lambda each: each.answer,
    "reference": lambda each: each.reference,
    "greedy": lambda each: each.greedy,
    "score": lambda each: each.score,
    "tokens": lambda each: each.tokens or None,
    "seconds": lambda each: each.seconds,
    "asked": lambda each: each.asked,
}
_CYCLE = ("number", "status", "score", "tokens", "seconds", "answer")


class RowLines(Lines):
    """The rows, filtered and sorted."""

    def __init__(self) -> None:
        super().__init__(id="row-lines")
        self.rows: list[RowState] = []

    def show(self, rows: list[RowState]) -> None:
        """The cursor stays on the row it is on."""
        before = self.row
        self.rows = rows
        if before is not None and (self.row is None or self.row.id != before.id):
            at = next((at for at, each in enumerate(rows) if each.id == before.id), None)
            if at is not None:
                self.set_reactive(Lines.cursor, at)
        self.set_count(len(rows))

    @property
    def row(self) -> RowState | None:
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def line(self, index: int, width: int, palette: Palette) -> Text:
        each = self.rows[index]
        sign, colour = SIGNS[each.status]
        style = getattr(palette, colour)
        answer = Text(one_line(each.error), style=palette.bad) if each.error else Text(one_line(each.answer or ""))
        values = {
            "number": Text(f"{each.number:,}", style=palette.muted),
            "id": Text(one_line(each.id), style=palette.text),
            "status": Text(f"{sign} {each.status}", style=style),
            "answer": answer,
            "reference": Text(one_line(each.reference or ""), style=palette.muted),
            "greedy": Text(one_line(each.greedy or ""), style=palette.muted),
            "score": Text("" if each.score is None else figures.score(each.score), style=palette.scale(each.score)),
            "tokens": Text(figures.count(each.tokens) if each.tokens else "", style=palette.text),
            "seconds": Text("" if each.seconds is None else figures.seconds(each.seconds), style=palette.muted),
            "asked": Text(one_line(each.asked), style=palette.muted),
        }
        return row(fitted(COLUMNS, width), values)


class RowsView(View):
    """Enter shows how the row was searched."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("d", "details", "Details"),
        Binding("escape", "clear", "Clear", show=False),
    ]

    class Opened(Message):
        """A row's search is wanted."""

        def __init__(self, row: str) -> None:
            super().__init__()
            self.row = row

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.sorted_by = "number"
        self.downwards = False
        self.wanted = ""
        self._shown: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield Heading(COLUMNS)
        yield RowLines()
        yield Static(id="row-panel", classes="panel")
        yield Input(
            id="row-filter",
            placeholder="words; status:failed, wrong, right, running, waiting; esc clears",
            compact=True,
        )
        yield Static(id="row-foot", classes="foot")

    def on_mount(self) -> None:
        self.query_one(Input).display = False

    def draw(self) -> None:
        state = self.state
        rows = [each for each in state.rows.values() if matches(each, self.wanted)]
        self.query_one(RowLines).show(ordered(rows, self.sorted_by, downwards=self.downwards))
        self.query_one(Heading).show(COLUMNS, self.sorted_by, downwards=self.downwards)
        self.query_one("#row-foot", Static).update(self._foot(len(rows), state))
        self._show_row()

    def take_focus(self) -> None:
        self.query_one(RowLines).focus()

    def on_lines_moved(self) -> None:
        self._show_row()

    def on_lines_chosen(self) -> None:
        found = self.query_one(RowLines).row
        if found is not None:
            self.post_message(self.Opened(found.id))

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

    def action_filter(self) -> None:
        box = self.query_one(Input)
        box.display = True
        box.focus()

    def action_clear(self) -> None:
        box = self.query_one(Input)
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
        found = self.query_one(RowLines).row
        if found is not None:
            self.app.push_screen(Details(row_facts(found)))

    def _foot(self, shown: int, state: RunState) -> Text:
        palette = Palette.of(self.app)
        counts = dict.fromkeys(STATUSES, 0)
        for each in state.rows.values():
            counts[each.status] += 1
        text = Text(" ")
        if self.wanted:
            text.append(f"{shown:,} of {len(state.rows):,} shown  ", palette.warn)
        for status, count in counts.items():
            if count:
                sign, colour = SIGNS[status]
                text.append(f"{sign} ", getattr(palette, colour)).append(f"{count:,} {status}  ", palette.muted)
        if state.judged and state.greedy_right:
            text.append(f"greedy {figures.share(state.greedy_right / state.judged)} right", palette.muted)
        return text

    def _show_row(self) -> None:
        palette = Palette.of(self.app)
        found = self.query_one(RowLines).row
        panel = self.query_one("#row-panel", Static)
        if found is None:
            panel.update(Text("nothing matches" if self.wanted else "no rows yet", style=palette.muted))
            return
        text = Text()
        if found.error is not None:
            text.append(f"✖ {one_line(found.error)}", palette.bad)
        else:
            text.append("answer ", palette.muted).append(one_line(found.answer or figures.NONE), f"bold {palette.text}")
            for name, value in (("right", found.reference), ("greedy", found.greedy)):
                if value is not None:
                    text.append(f"   {name} ", palette.muted).append(one_line(value), palette.text)
        panel.update(text.append("\n").append(one_line(found.asked), palette.muted))


def row_facts(found: RowState) -> Facts:
    facts = Facts(f"{found.id}  {SIGNS[found.status][0]} {found.status}")
    facts.add("asked", found.asked)
    facts.add("error", found.error)
    facts.add("answer", found.answer)
    facts.add("right answer", found.reference)
    facts.add("greedy", found.greedy)
    facts.gap()
    facts.add("score", None if found.score is None else figures.score(found.score))
    facts.add("tokens", f"{found.prompt_tokens:,} in, {found.sampled_tokens:,} out")
    facts.add("time", figures.seconds(found.seconds))
    return facts


def matches(found: RowState, wanted: str) -> bool:
    """Every word stands somewhere in the row; `status:` asks for that alone."""
    for word in wanted.lower().split():
        if word.startswith("status:"):
            if not found.status.startswith(word.removeprefix("status:")):
                return False
        elif not any(
            word in (text or "").lower() for text in (found.id, found.asked, found.answer, found.error, found.status)
        ):
            return False
    return True


def ordered(rows: list[RowState], by: str, *, downwards: bool) -> list[RowState]:
    """What has no value comes last either way; texts that are numbers go by their value."""
    key = _KEYS[by]
    some = [each for each in rows if key(each) is not None]
    none = [each for each in rows if key(each) is None]
    some.sort(key=lambda each: _comparable(key(each)), reverse=downwards)
    return some + none


def _comparable(value: Any) -> tuple[int, float, str]:
    try:
        return 0, float(value), ""
    except ValueError:
        return 1, 0.0, str(value)
