"""One candidate in full: its fate and why, its text with the model's confidence, its place among the others."""

from __future__ import annotations

import math

from rich.text import Text

from qpdsl.grammar.printable import one_line, printable
from qpdsl.tui.state.plan import PlanTree
from qpdsl.tui.state.search import CandidateNode, Fate, Ranking, SearchTree, ranking_of
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.table import cell

# Sign, word, and the palette's colour: the sign says it without colour.
FATES: dict[Fate, tuple[str, str, str]] = {
    "answer": ("★", "the answer", "good"),
    "finished": ("◆", "finished", "accent"),
    "kept": ("●", "kept", "text"),
    "open": ("○", "open", "muted"),
    "dropped": ("✕", "pruned", "faint"),
}
AHEAD = "»"
# Below this probability a token is worth a look.
_UNSURE = 0.9


def sign(node: CandidateNode) -> str:
    return (AHEAD if node.candidate.ahead else "") + FATES[node.fate][0]


def legend(palette: Palette) -> Text:
    text = Text(" ")
    for mark, word, colour in FATES.values():
        text.append(f"{mark} ", getattr(palette, colour)).append(f"{word}  ", palette.muted)
    return text.append(f"{AHEAD} ", palette.second).append("run ahead", palette.muted)


def fate_line(tree: SearchTree, node: CandidateNode, plan: PlanTree | None, palette: Palette) -> Text:
    """What became of a candidate, in one line."""
    _, word, colour = FATES[node.fate]
    colour = "muted" if colour == "faint" else colour
    text = Text.assemble((f"{sign(node)} {word}", f"bold {getattr(palette, colour)}"))
    if node.score is not None:
        text.append(f"  {figures.score(node.score)}", f"bold {palette.scale(node.score)}")
    ranking = ranking_of(tree, node)
    if ranking is None:
        return text
    place = ranking.place(node.path)
    text.append(f"  {place} of {len(ranking.ranked)}", palette.text)
    where = operator_text(plan, ranking.operator)
    text.append(f" at {where}" if where else "", palette.muted)
    return text.append(f", round {ranking.round}" if ranking.round else "", palette.muted)


def operator_text(plan: PlanTree | None, operator: str) -> str:
    lines = plan.lines if plan else ()
    return one_line(next((f"`{line.text}`" for line in lines if line.id == operator), ""))


def step_text(node: CandidateNode, palette: Palette) -> Text:
    """The step's text, each token in the colour of its probability where that is known."""
    candidate = node.candidate
    if not candidate.pieces:
        return Text(printable(candidate.step.strip("\n"), tabs=False), style=palette.text)
    text = Text()
    for piece, logprob in zip(candidate.pieces, candidate.logprobs, strict=False):
        shown = printable(piece.replace("\n", "⏎"), tabs=False)
        sure = math.exp(min(logprob, 0.0))
        style = palette.scale(sure) if sure < _UNSURE else palette.text
        text.append(shown, f"underline {style}" if sure < 0.5 else style)
    return text


def sureness(node: CandidateNode, palette: Palette) -> Text:
    """Tokens and their probability, the least sure named."""
    candidate = node.candidate
    text = Text(f"{candidate.tokens} tokens", style=palette.muted)
    if candidate.thought_tokens:
        text.append(f", {candidate.thought_tokens} of them thought", palette.muted)
    if candidate.finish:
        text.append(f"  ended by {one_line(candidate.finish)}", palette.muted)
    if candidate.logprobs:
        text.append(f"  log p {sum(candidate.logprobs):.2f}", palette.muted)
        unsure = sorted(zip(candidate.logprobs, candidate.pieces, strict=False))[:3]
        shown = [(piece, math.exp(min(logprob, 0.0))) for logprob, piece in unsure]
        for piece, sure in shown:
            if sure < _UNSURE:
                text.append("  ").append(f"`{one_line(piece) or '⏎'}`", palette.text)
                text.append(f" {sure:.2f}", palette.scale(sure))
    return text


def token_table(node: CandidateNode, width: int, palette: Palette) -> Text:
    """Every token with its probability, as many columns as there is room for."""
    candidate = node.candidate
    cells_each = 22
    columns = max(width // cells_each, 1)
    pairs = list(zip(candidate.pieces, candidate.logprobs, strict=False))
    height = -(-len(pairs) // columns) if pairs else 0
    text = Text()
    for line in range(height):
        for piece, logprob in pairs[line::height]:
            sure = math.exp(min(logprob, 0.0))
            shown = one_line(piece) if piece.strip(" \t\r\n") else _whitespace(piece)
            text.append_text(cell(Text(shown, style=palette.text), 9, right=True)).append(
                f" {sure:.2f} ", palette.scale(sure)
            )
            text.append_text(cell(Text(figures.bar(sure, 6), style=palette.scale(sure)), 7))
        text.append("\n")
    return text


def _whitespace(piece: str) -> str:
    return printable(piece.replace("\n", "⏎").replace(" ", "␣"), tabs=False)


def solution(tree: SearchTree, node: CandidateNode, palette: Palette) -> Text:
    """All steps up to this one, with their scores; above a step what the model thought before it."""
    text = Text()
    for step in tree.line_of(node):
        if step.candidate.thought is not None:
            text.append(_indented(f"thought, {step.candidate.thought_tokens:,} tokens"), palette.muted)
            text.append(_indented(printable(step.candidate.thought, tabs=False)), f"italic {palette.muted}")
        shown = printable(step.candidate.step.strip("\n"), tabs=False) or " ".join(map(str, step.path[-1:]))
        text.append(f"{figures.score(step.score):>6} ", palette.scale(step.score))
        text.append(shown.replace("\n", "\n       "), palette.text if step is not node else f"bold {palette.text}")
        text.append("\n")
    return text


def _indented(lines: str) -> str:
    """Lines below a score."""
    return "".join(f"       {line}\n" for line in lines.split("\n"))


def values(node: CandidateNode, palette: Palette) -> Text:
    text = Text()
    for name, value in node.values.items():
        text.append(f"{one_line(name)} ", palette.muted).append(f"{one_line(str(value))}  ", f"bold {palette.text}")
    return text


def ranking_table(ranking: Ranking, chosen: CandidateNode, width: int, palette: Palette, most: int) -> Text:
    """The round's candidates by rank, and a line where the cut was."""
    text = Text()
    shown = ranking.ranked[:most]
    for place, candidate in enumerate(shown, 1):
        if place - 1 == ranking.kept and ranking.kept:
            text.append("╌" * 12 + " cut ".ljust(width - 12, "╌")[: max(width - 12, 0)] + "\n", palette.warn)
        node, score = candidate.node, candidate.node.score
        here = node is chosen
        line = Text(f"{'▸' if here else ' '}{place:>3} ", style=palette.accent if here else palette.muted)
        line.append(
            f"{('★' if node.answer else '●') if candidate.kept else '✕'} ",
            palette.text if candidate.kept else palette.faint,
        )
        line.append(f"{figures.score(score):>6} ", palette.scale(score))
        line.append_text(cell(Text(figures.bar(score or 0.0, 8), style=palette.scale(score)), 9))
        colour = palette.text if candidate.kept else palette.muted
        line.append_text(
            cell(Text(one_line(node.candidate.step), style=f"bold {colour}" if here else colour), max(width - 23, 8))
        )
        text.append_text(line).append("\n")
    if len(ranking.ranked) > most:
        text.append(f"     and {len(ranking.ranked) - most} more\n", palette.muted)
    return text
