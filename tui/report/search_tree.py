"""How one row was searched, as the lines of a tree: each candidate unfolds to all that it wrote."""

from __future__ import annotations

from qpdsl.grammar.printable import shorten
from qpdsl.tui.report.elements import Markup, paragraphs, text
from qpdsl.tui.screens.candidate import FATES, WALKED, fates, in_line, marks, name, values, verdict_lines, walked
from qpdsl.tui.screens.plan_boxes import failure_text
from qpdsl.tui.screens.rows import again
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.state.search import SearchTree, TreeLine, flattened
from qpdsl.tui.state.verdict import Highlights
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.palette import NO_COLOURS

_NODES = 300
# Characters of a candidate's line, and of the strokes before it: deeper ones begin with an ellipsis.
_LINE, _STROKES = 160, 24


def row_search(state: RunState, row_id: str) -> str:
    """What was asked, what the search says as a whole, and its tree."""
    row, tree = state.rows.get(row_id), state.trees.get(row_id)
    said = [line.plain.strip() for line in verdict_lines(state, row_id, NO_COLOURS)]
    if row is not None and row.why is not None:
        said.insert(0, f"✖ {failure_text(state, row.failed_in, row.why)}")
    if row is not None and row.ended is not None:
        said.append(f"again: {again(state, row)}")
    asked = "" if row is None or not row.asked else f'<p class="asked">{text(row.asked)}</p>'
    told = f'<div class="said">{paragraphs(said)}</div>' if said else ""
    return asked + told + ("" if tree is None else _tree(state, tree, row_id))


def _tree(state: RunState, tree: SearchTree, row_id: str) -> str:
    lines, lit = flattened(tree, set(), living=False), Highlights.of(tree, state.rows.get(row_id))
    signs = {tree.fate(line.node) for line in lines}
    legend = " ".join(f"{sign} {word}" for fate, (sign, word, _) in FATES.items() if fate in signs)
    shown = "".join(f"<li>{_line(state, tree, line, lit)}</li>" for line in lines[:_NODES])
    more = f"<li>and {len(lines) - _NODES:,} more</li>" if len(lines) > _NODES else ""
    head = f'<p class="hint">{fates(tree)} · <span class="signs">{legend}</span></p>'
    return f'{head}<ol class="tree">{shown}{more}</ol>'


def _line(state: RunState, tree: SearchTree, line: TreeLine, lit: Highlights) -> str:
    node, fate = line.node, tree.fate(line.node)
    sign, word, colour = FATES[fate]
    strokes = line.strokes if len(line.strokes) <= _STROKES else f"‥{line.strokes[1 - _STROKES :]}"
    step = node.record.step.strip()
    short = shorten(in_line(step) or name(node, state.plan), _LINE)
    by_search = [f"{title} {shown}" for column, title in WALKED.items() if (shown := walked(node, column))]
    told = f"{', '.join(by_search)}  {marks(line, lit, NO_COLOURS).plain.strip()}".strip()
    score = f"{figures.score(node.score)} " if node.scores else ""
    kind = "way" if node.key in lit.way else colour
    tag = ("mark", "mark") if told.endswith(" here") else ('span class="hint"', "span")
    shown = Markup(
        f'<span class="strokes" aria-hidden="true">{strokes}</span><span class="{kind}">'
        f'{sign}<span class="read"> {word}</span> <span class="score">{score}</span>{text(short)}</span>'
        + (f" <{tag[0]}>{text(told)}</{tag[1]}>" if told else "")
    )
    columns = values(node, NO_COLOURS).plain.strip()
    more = "" if short == step or not step else f"<pre>{text(step)}</pre>"
    more += f"<pre>{text(columns)}</pre>" if columns else ""
    return f"<details><summary>{shown}</summary>{more}</details>" if more else shown
