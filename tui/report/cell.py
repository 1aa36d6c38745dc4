"""What the cell of a notebook shows: runs that go on, and one that has ended. Parts of the page, without scripts.

Colours are mixed with the notebook's own text, so that they can be read on a light ground and on a dark one.
"""

from __future__ import annotations

from qpdsl.grammar.printable import one_line
from qpdsl.tui.report.elements import facts, folded, part, text
from qpdsl.tui.report.search_tree import row_search
from qpdsl.tui.report.sections import at_work, failures, plan, progress_facts, time_spent, tokens
from qpdsl.tui.state.run_state import RunState

_COLOURS = {"accent": "#2f6fe0", "second": "#8a4fe0", "good": "#0a9c86", "warn": "#d98200", "bad": "#e0352b"}
_OWN = (
    "--text: currentColor; --surface: transparent; --line: rgba(128,128,128,.35);"
    "--muted: color-mix(in srgb, currentColor 70%, transparent); --faint: var(--muted);"
    + "".join(f"--{name}: color-mix(in oklab, currentColor 25%, {mixed});" for name, mixed in _COLOURS.items())
    + "th { position: static; } summary { cursor: pointer; } p { margin: .2rem 0; }"
)


def runs_cell(state: RunState) -> str:
    """How far runs are and what they do, what failed, and the plan with what its operators did; folded in the end."""
    told = _progress(state)
    line = (f"{one_line(state.begun.program)}: " if state.begun else "") + runs_line(state)
    parts = [facts(told), failures(state), at_work(state), plan(state), time_spent(state)]
    return _styled(folded(line, *parts, is_open=state.ended is None))


def runs_line(state: RunState) -> str:
    """The same in a few words, for what shows no HTML."""
    return " · ".join(
        f"{value} {name}" if name in ("rows", "left", "failed") else value for name, value in _progress(state)
    )


def _progress(state: RunState) -> list[tuple[str, str]]:
    """Where nobody knows how many rows there are, nobody knows how long they take."""
    told = list(progress_facts(state))
    if state.begun is None or not state.begun.rows:
        told = [(name, value.partition(" of ")[0]) for name, value in told if name != "left"]
    sampled = sum(totals.sampled_tokens for totals in state.operators.values())
    return [*told, ("tokens", f"{sampled:,} tokens")]


def row_cell(state: RunState, row: str, value: str, costs: str) -> str:
    """What a run gave and cost, how it was searched, and where its tokens went."""
    spent = tokens(state)
    parts = [row_search(state, row), folded("where the tokens went", spent) if spent else ""]
    return _styled(f'<p><b class="asked">{text(value)}</b> <span class="hint">{text(costs)}</span></p>{"".join(parts)}')


def _styled(shown: str) -> str:
    return f'<style>.qpdsl {{ {_OWN} {part("parts.css")} }}</style><div class="qpdsl">{shown}</div>'
