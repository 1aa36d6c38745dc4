"""Cells: those of a sweep, with what is at work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from qpdsl.executor.events.events import CellReached
from qpdsl.grammar.printable import one_line
from qpdsl.tui.screens.listing import Listing
from qpdsl.tui.screens.view import Copies
from qpdsl.tui.state.compare import interval
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.line_list import LineList
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.table import TableColumn

_BAR = 10


class CellsView(Listing):
    COLUMNS = (
        TableColumn("cell", "cell", 0, right=False, weight=100, least=24),
        TableColumn("now", "now", 4, weight=80),
        TableColumn("rows", "rows", 13, weight=90),
        TableColumn("bar", "", _BAR, right=False, weight=20),
        TableColumn("right", "right", 8, weight=85),
        TableColumn("front", "", 1, right=False, weight=30),
        TableColumn("failed", "failed", 6, weight=40),
        TableColumn("tokens", "tokens a row", 12, weight=60),
        TableColumn("shared", "shared", 6, weight=50),
    )
    # Of what is drawn now.
    _front: frozenset[str] = frozenset()

    def items(self, state: RunState) -> Sequence[CellReached]:
        cells = list(state.cells.values())
        self._front = _front(cells)
        return cells

    def key_of(self, item: CellReached) -> str:
        return item.cell

    def values(self, item: CellReached, palette: Palette) -> Mapping[str, Text | str]:
        over = item.done >= item.rows
        sign, colour = ("✔", palette.good) if over else ("●", palette.good) if item.running else ("·", palette.faint)
        part = item.done / item.rows if item.rows else 0.0
        return {
            "cell": Text(f"{sign} ", style=colour).append(one_line(item.cell), palette.text),
            "now": Text(f"●{item.running}" if item.running else "", style=palette.good),
            "rows": Text(f"{item.done:,}/{item.rows:,}", style=palette.text),
            "bar": Text(figures.bar(part, _BAR), style=colour),
            "right": Text(_right(item), style=palette.text),
            "front": Text("◆" if item.cell in self._front else "", style=palette.accent),
            "failed": Text(f"{item.failed:,}" if item.failed else "", style=palette.bad),
            "tokens": Text(figures.count(item.sampled_tokens / item.done) if item.done else "", style=palette.text),
            "shared": Text(_shared([item]), style=palette.muted),
        }

    def foot(self, state: RunState, palette: Palette) -> Text:
        cells = list(state.cells.values())
        if not cells:
            return Text(" the cells come once they are planned", style=palette.muted)
        over = sum(cell.done >= cell.rows for cell in cells)
        text = Text(f" {over:,} of {len(cells):,} cells are done", style=palette.muted)
        drawn = sum(cell.sampled_tokens - cell.shared_tokens for cell in cells)
        text.append(f"  {figures.count(drawn)} tokens drawn", palette.text)
        text.append(f"  {_shared(cells)} of all tokens shared between cells" if _shared(cells) else "")
        if self._front:
            text.append("  ◆ ", palette.accent).append("none is as right for fewer tokens", palette.muted)
        return text

    def words(self) -> tuple[str, ...]:
        return ("right", "◆", "tokens a row", "shared")

    def copies(self) -> Copies:
        item = self.query_one(LineList).item
        return [] if item is None else [("cell", item.cell)]


def _right(cell: CellReached) -> str:
    """The share of right answers, and how far the true one may lie from it."""
    if not cell.judged:
        return ""
    share, sure = cell.right / cell.judged, interval(cell.right, cell.judged)
    return f"{share:.0%} ±{max(sure.high - share, share - sure.low) * 100:.0f}"


def _front(cells: Sequence[CellReached]) -> frozenset[str]:
    """The cells that no other one beats in both right answers and tokens."""
    from qpdsl.runs.statistics import on_front

    known = [own for own in cells if own.judged and own.done]
    on = on_front([(own.sampled_tokens / own.done, own.right / own.judged) for own in known])
    return frozenset(own.cell for own, is_on in zip(known, on, strict=True) if is_on)


def _shared(cells: Sequence[CellReached]) -> str:
    """The share of tokens that another cell had drawn; nothing where there are none."""
    sampled, shared = sum(cell.sampled_tokens for cell in cells), sum(cell.shared_tokens for cell in cells)
    return figures.share(shared / sampled) if shared else ""
