"""Requests: those that a server answers, the latest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from qpdsl.grammar.printable import one_line
from qpdsl.tui.screens.listing import Listing
from qpdsl.tui.screens.view import Copies
from qpdsl.tui.state.run_state import RequestState, RunState
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.line_list import LineList
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.table import TableColumn

# Seconds over which a rate is taken, and requests over which percentiles are.
_WINDOW = 60.0
_LATEST = 1000
_SIGNS = {"waiting": ("·", "warn"), "running": ("●", "good"), "answered": ("✔", "good"), "cancelled": ("■", "muted")}


class RequestsView(Listing):
    COLUMNS = (
        TableColumn("id", "request", 0, right=False, weight=60, least=16),
        TableColumn("program", "program", 18, right=False, weight=70),
        TableColumn("status", "status", 11, right=False, weight=100),
        TableColumn("prompt", "prompt", 7, weight=40),
        TableColumn("sampled", "sampled", 7, weight=80),
        TableColumn("seconds", "time", 7, weight=90),
    )

    def items(self, state: RunState) -> Sequence[RequestState]:
        return list(reversed(state.requests.values()))

    def key_of(self, item: RequestState) -> str:
        return item.id

    def values(self, item: RequestState, palette: Palette) -> Mapping[str, Text | str]:
        sign, colour = _SIGNS.get(item.status, ("!", "bad"))
        took = item.seconds if item.ended is not None else max(self.state.now - item.arrived, 0.0)
        return {
            "id": Text(one_line(item.id), style=palette.text),
            "program": Text(one_line(item.program), style=palette.text),
            "status": Text(f"{sign} {one_line(item.status)}", style=getattr(palette, colour)),
            "prompt": Text(figures.count(item.prompt_tokens) if item.prompt_tokens else "", style=palette.muted),
            "sampled": Text(figures.count(item.sampled_tokens) if item.sampled_tokens else "", style=palette.text),
            "seconds": Text(figures.seconds(took), style=palette.muted if item.ended is not None else palette.text),
        }

    def words(self) -> tuple[str, ...]:
        return ("prompt", "sampled", "p50")

    def copies(self) -> Copies:
        item = self.query_one(LineList).item
        return [] if item is None else [("request", item.id)]

    def foot(self, state: RunState, palette: Palette) -> Text:
        ended = [request for request in state.requests.values() if request.ended is not None]
        if not state.requests:
            return Text(" no request yet", style=palette.muted)
        lately = sum(request.ended is not None and request.ended > state.now - _WINDOW for request in ended)
        text = Text(f" {lately:,} ended in the last minute", style=palette.text)
        took = sorted(request.seconds for request in ended[-_LATEST:] if request.status == "answered")
        if took:
            text.append("  time", palette.muted)
            for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
                text.append(f"  {name} ", palette.muted)
                text.append(figures.seconds(took[min(int(part * len(took)), len(took) - 1)]), palette.text)
        bad = sum(request.status not in ("answered", "cancelled") for request in ended)
        return text.append(f"  ✖ {bad:,} not answered" if bad else "", palette.bad)
