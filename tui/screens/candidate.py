"""One candidate in full: its fate and why, its text with the model's confidence, its place among the others."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.text import Text

from qpdsl.executor.events.events import CandidateRecord
from qpdsl.grammar.printable import one_line, printable, shorten
from qpdsl.grammar.words import SEARCH_PRIOR
from qpdsl.tui.state.plan import PlanTree
from qpdsl.tui.state.run_state import RowState, RunState
from qpdsl.tui.state.search import (
    CandidateNode,
    Fate,
    LostAnswer,
    Ranking,
    SearchTree,
    TreeLine,
    Votes,
    groups_beside,
    is_share,
    part_of,
    ranking_of,
    same_answer,
)
from qpdsl.tui.state.verdict import Fall, Highlights, VoteCourse, fall_of, last_vote, margin_at_the_cut
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.table import cell

# Columns of a tree search, as its candidates have them, and their words.
WALKED = {"visits": "visits", "value": "value", SEARCH_PRIOR: "prior"}
# Sign, word, and the palette's colour: the sign says it without colour.
FATES: dict[Fate, tuple[str, str, str]] = {
    "answer": ("★", "the answer", "good"),
    "finished": ("◆", "finished", "accent"),
    "kept": ("●", "kept", "text"),
    "open": ("○", "not judged yet", "muted"),
    "dropped": ("✕", "pruned", "faint"),
    "agreed": ("◇", "agreed", "text"),
    "outvoted": ("▽", "outvoted", "muted"),
    "no vote": ("∅", "no vote", "muted"),
    "duplicate": ("≈", "a duplicate", "muted"),
    "joined": ("⊕", "joined", "muted"),
    "given up": ("⊘", "given up", "muted"),
    "unfinished": ("…", "unfinished", "warn"),
    "failed": ("✖", "failed", "bad"),
    "copy": ("=", "a copy", "muted"),
    "beside": ("┆", "aside", "second"),
}
# Below this probability a token is worth a look.
_UNSURE = 0.9
# Cells for the text of an operator, which may hold a whole prompt.
_OPERATOR = 48
# So many answers of a vote stand in its line.
_TALLY = 4
# What wrote tokens other than the model's own draws: words, the palette's colour, and a sign for the table.
_WRITERS: dict[str, tuple[str, str, str]] = {
    "forced": ("forced", "muted", "!"),
    "drafted": ("drafted", "accent", "»"),
    "early": ("of its first layers", "second", "↑"),
    "small": ("of the small model", "second", "s"),
}
# Log-probabilities are shown to hundredths.
_SAME = 0.005


def legend(tree: SearchTree | None, palette: Palette, width: int) -> Text:
    """The signs that are in the tree and what they mean, as many as there is room for."""
    text = Text(" ")
    found = {tree.fate(node) for node in tree.nodes()} if tree is not None else set()
    for fate, (mark, word, colour) in FATES.items():
        if fate in found and text.cell_len + len(word) + 2 <= width:
            text.append(f"{mark} ", getattr(palette, colour)).append(f"{word}  ", palette.muted)
    return text


def fates(tree: SearchTree) -> str:
    """How many candidates there are, and what became of those that were left behind."""
    counts = tree.fates
    left = [
        f"{counts[fate]:,} {FATES[fate][1].removeprefix('a ')}"
        for fate in FATES
        if counts[fate] and fate not in ("answer", "finished", "kept", "open")
    ]
    total = counts.total()
    return ", ".join([f"{total:,} candidate{'s' * (total != 1)}", *left])


def fate_line(tree: SearchTree, node: CandidateNode, plan: PlanTree | None, palette: Palette) -> Text:
    """What became of a candidate, in one line."""
    sign, word, colour = FATES[tree.fate(node)]
    colour = "muted" if colour == "faint" else colour
    text = Text.assemble((f"{sign} {word}", f"bold {getattr(palette, colour)}"))
    if node.score is not None:
        text.append(f"  {figures.score(node.score)}", f"bold {palette.scale(tree.part(node))}")
    ranking = ranking_of(tree, node)
    if ranking is None:
        return text
    place = ranking.place(tree.ranked_row(node))
    text.append(f"  {place} of {len(ranking.ranked)}", palette.text)
    where = operator_text(plan, ranking.operator)
    text.append(f" at {where}" if where else "", palette.muted)
    return text.append(_which(ranking), palette.muted)


def lost_text(lost: LostAnswer, plan: PlanTree | None) -> str:
    """Where a right answer was lost, and what would have kept it."""
    ranking, node = lost.ranking, lost.node
    which = _which(ranking).removeprefix(", ")
    where = f" in {which}" if which else ""
    if lost.place is not None:
        of = f"place {lost.place} of {len(ranking.ranked)}"
        width = f"width {lost.place} would have kept it"
        return f"a right answer was lost{where}: {of}, {ranking.kept} kept; {width}"
    if tally := ranking.tally:
        right = next((votes for votes in tally if _has(votes, node)), None)
        if right is not None:
            return f"the right answer lost the vote{where}: {weight(right.total)} to {weight(tally[0].total)}"
    return f"a right answer was lost{where} at {operator_text(plan, ranking.operator)}"


def verdict_lines(state: RunState, row: str, palette: Palette) -> Iterator[Text]:
    """What the search of a row says as a whole: where an answer was lost, which step went wrong, how the vote stood."""
    tree, row_state = state.trees.get(row), state.rows.get(row)
    if tree is None:
        return
    if row_state is not None and row_state.lost is not None:
        yield Text(f"{lost_text(row_state.lost, state.plan)}", style=f"bold {palette.warn}")
    if row_state is not None and row_state.correct is False and (fall := fall_of(tree)) is not None:
        yield Text(f"{fall_text(fall)}", style=palette.warn)
    if (vote := last_vote(tree)) is not None:
        yield vote_line(vote, None if row_state is None else row_state.reference, palette)
    elif (cut := cut_line(tree, row_state, palette)) is not None:
        yield cut


def walked(node: CandidateNode, name: str) -> str:
    """How often a tree search came by a candidate, what it found it to be worth since, and how likely it was before."""
    value = node.values.get(name)
    if "visits" not in node.values or not isinstance(value, (int, float)):
        return ""
    return f"{value:g}" if name == "visits" else figures.score(value)


def marks(line: TreeLine, lit: Highlights, palette: Palette, folded: int = 0) -> Text:
    """What is to be said of a candidate after its text; `folded` below it have no lines."""
    node, keys = line.node, {line.node.key, *(other.key for other in line.others)}
    text = Text()
    if node.matches:
        won = sum(chance >= 0.5 for _, chance in node.matches)
        text.append(f"  won {won} of {len(node.matches)}", palette.second)
    if (copies := node.copies) > 1 and "visits" not in node.values:
        text.append(f"  goes on ×{copies}", palette.second)
    if line.others:
        text.append(f"  ×{len(keys)}", f"bold {palette.second}")
    if folded:
        text.append(f"  +{folded}", palette.second)
    if "\n" in node.record.step.strip() and (answer := node.values.get("answer")) is not None:
        text.append(f"  → {shorten(one_line(str(answer)), 16)}", palette.text)
    if node.key in lit.right:
        text.append("  right", f"bold {palette.good}")
    if lit.lost is not None and lit.lost.key in keys:
        text.append("  lost here", f"bold {palette.warn}")
    if lit.fell is not None and lit.fell.node is node:
        text.append("  went wrong here", f"bold {palette.warn}")
    return text


def fall_text(fall: Fall) -> str:
    """Which step of the answer went wrong, by its verifier."""
    before = "" if fall.before is None else f"{figures.score(fall.before)} → "
    return f"went wrong at step {fall.place} of {fall.steps}: {before}{figures.score(fall.score)}, the first below 0.5"


def vote_line(vote: VoteCourse, reference: str | None, palette: Palette) -> Text:
    """How the vote stood, when it was decided, and whether it could have come otherwise."""
    text = Text("vote ", style=palette.muted)
    if vote.given_up:
        whole = vote.rows + vote.given_up
        text.append(f"decided after {vote.rows} of {whole}, the others given up", palette.text)
    elif vote.decided < vote.rows:
        text.append(f"decided after {vote.decided} of {vote.rows}", palette.text)
    else:
        lead = f"lead {weight(vote.lead)}" if vote.lead else "a tie"
        voted = any(own.answer is not None for own in vote.tally)
        text.append(f"open until the last of {vote.rows}, {lead}" if voted else "without an answer", palette.warn)
    shown = [*vote.tally[:_TALLY], *(own for own in vote.tally[_TALLY:] if is_right(own, reference))]
    for place, own in enumerate(shown):
        answer = "no answer" if own.answer is None else one_line(own.answer)
        count = own.rows if own.answer is None else own.total
        text.append(" · " if place else "  ", palette.muted)
        text.append(f"{answer}", f"bold {palette.text}" if place == 0 else palette.muted)
        text.append(f" ×{weight(count)}", palette.text)
        text.append(" right" if is_right(own, reference) else "", f"bold {palette.good}")
    rest = len(vote.tally) - len(shown)
    return text.append(f" · and {rest} more" if rest else "", palette.muted)


def is_right(votes: Votes, reference: str | None) -> bool:
    return votes.answer is not None and reference is not None and same_answer(votes.answer, reference)


def cut_line(tree: SearchTree, row_state: RowState | None, palette: Palette) -> Text | None:
    """How near candidates were to the cuts, and how many of the answers are right; None where neither is known."""
    text = Text()
    if (margin := margin_at_the_cut(tree)) is not None:
        where = _which(margin.ranking)
        of = "margin at the cut " if margin.cuts == 1 else f"least margin at {margin.cuts} cuts "
        text.append(of, palette.muted).append(f"{margin.least:.3g}", palette.text)
        text.append(where.replace(", ", " in ", 1), palette.muted)
        ties = "a tie" if margin.cuts == 1 else f"{margin.ties} tied"
        text.append(f", {ties}" if margin.ties else "", palette.warn)
        text.append("  ")
    graded = () if row_state is None else row_state.graded
    if graded:
        right = sum(answer.right for answer in graded)
        below = sum(
            answer.right and (node := tree.get(answer.key)) is not None and node.left is not None for answer in graded
        )
        text.append("right answers ", palette.muted).append(f"{right} of {len(graded)}", palette.text)
        text.append(f", {below} cut" if below and margin is not None else "", palette.warn)
    return text if text.plain.strip() else None


def _has(votes: Votes, node: CandidateNode) -> bool:
    return votes.answer is not None and any(str(value) == votes.answer for value in node.values.values())


def _which(ranking: Ranking) -> str:
    group = ranking.selection.group
    text = f", group {one_line(group)}" if group is not None else ""
    return text + (f", round {ranking.round}" if ranking.round else "")


def operator_text(plan: PlanTree | None, operator: str) -> str:
    line = plan.line(operator) if plan else None
    return "" if line is None else f"`{shorten(one_line(line.text), _OPERATOR)}`"


def name(node: CandidateNode, plan: PlanTree | None) -> str:
    """What a node is called that wrote no text: what looks at rows aside, the row that it copies, else its number."""
    if node.heads:
        frame = node.aside[-1]
        line = plan.line(frame.partition("@")[0]) if plan else None
        return one_line(frame if line is None else line.text)
    if node.path[-1] < 0:
        return "rolled out"
    return one_line(node.writer.record.step) or f"copy {node.path[-1] + 1}"


def in_line(step: str) -> str:
    """A text in one line, its empty lines left out."""
    return one_line("\n".join(line for line in step.split("\n") if line.strip()))


def step_text(node: CandidateNode, palette: Palette, newline: str = "⏎") -> Text:
    """The step's text, each token in the colour of its probability, or of what else than the model's draw wrote it."""
    candidate = node.record
    if not candidate.pieces:
        return Text(printable(candidate.step.strip("\n"), tabs=False), style=palette.text)
    text = Text()
    writers = _writers(candidate)
    for place, (piece, sure) in enumerate(_tokens(candidate)):
        shown = newline.join(printable(line, tabs=False) for line in piece.split("\n"))
        if (writer := writers.get(place)) is not None:
            style = f"italic {getattr(palette, _WRITERS.get(writer, ('', 'muted', ''))[1])}"
        else:
            style = palette.warn if sure is not None and sure < _UNSURE else palette.text
        text.append(shown, f"underline {style}" if sure is not None and sure < 0.5 else style)
    return text


def _tokens(candidate: CandidateRecord) -> list[tuple[str, float | None]]:
    """The pieces of its text with their probabilities, None where nobody asked for these, or they are no numbers."""
    sure = [None if math.isnan(logprob) else math.exp(min(logprob, 0.0)) for logprob in candidate.logprobs]
    return list(zip(candidate.pieces, sure or [None] * len(candidate.pieces), strict=False))


def _writers(candidate: CandidateRecord) -> dict[int, str]:
    """What wrote the piece at a place, where it was no draw of the model alone."""
    return {place: writer for writer, places in candidate.written.items() for place in places}


def sureness(node: CandidateNode, palette: Palette) -> Text:
    """Tokens and their probability, the least sure named."""
    candidate = node.record
    text = Text(f"{candidate.tokens} tokens", style=palette.muted)
    if candidate.thought_tokens:
        text.append(f", {candidate.thought_tokens} of them thought", palette.muted)
    for writer, places in candidate.written.items():
        word, colour, _ = _WRITERS.get(writer, (one_line(writer), "muted", "?"))
        text.append(f", {len(places):,} {word}", getattr(palette, colour))
    if candidate.finish:
        text.append(f"  ended by {one_line(candidate.finish)}", palette.muted)
    if candidate.logprobs:
        own = sum(candidate.logprobs)
        text.append(f"  log p {own:.2f}", palette.muted)
        if abs(own - candidate.logprob) > _SAME:
            text.append(f", {candidate.logprob:.2f} with the steps before", palette.muted)
        unsure = sorted(zip(candidate.logprobs, candidate.pieces, strict=False))[:3]
        shown = [(piece, math.exp(min(logprob, 0.0))) for logprob, piece in unsure]
        for piece, sure in shown:
            if sure < _UNSURE:
                text.append("  ").append(f"`{one_line(piece) or '⏎'}`", palette.text)
                text.append(f" {sure:.2f}", palette.scale(sure))
    return text


def token_table(node: CandidateNode, width: int, palette: Palette) -> Text:
    """Every token with its probability and what else than a draw wrote it, in as many columns as there is room for."""
    candidate = node.record
    cells_each = 22
    columns = max(width // cells_each, 1)
    pairs = _tokens(candidate)
    height = -(-len(pairs) // columns) if pairs else 0
    writers = _writers(candidate)
    text = Text()
    for line in range(height):
        for place in range(line, len(pairs), height):
            piece, sure = pairs[place]
            sign = _WRITERS.get(writers[place], ("", "", "?"))[2] if place in writers else " "
            shown = one_line(piece) if piece.strip(" \t\r\n") else _whitespace(piece)
            text.append_text(cell(Text(shown, style=palette.text), 9, right=True))
            text.append(f" {sure:.2f} " if sure is not None else " " * 6, palette.scale(sure))
            text.append_text(cell(Text(figures.bar(sure or 0.0, 5), style=palette.scale(sure)), 5))
            text.append(f"{sign} ", palette.second)
        text.append("\n")
    return text


def writers(node: CandidateNode, palette: Palette) -> Text:
    """The signs of what else than a draw of the model wrote tokens."""
    text = Text()
    for writer in node.record.written:
        word, _, sign = _WRITERS.get(writer, (one_line(writer), "", "?"))
        text.append(f"  {sign} ", palette.second).append(word, palette.muted)
    return text


def _whitespace(piece: str) -> str:
    return printable(piece.replace("\n", "⏎").replace(" ", "␣"), tabs=False)


def solution(tree: SearchTree, node: CandidateNode, plan: PlanTree | None, palette: Palette) -> Text:
    """All steps up to this one, with their scores; above a step what the model thought before it."""
    text = Text()
    for step in node.line():
        record = step.record
        if step.copied and step is not node:
            continue
        if record.thought is not None:
            text.append(_indented(f"thought, {record.thought_tokens:,} tokens"), palette.muted)
            text.append(_indented(printable(record.thought, tabs=False)), f"italic {palette.muted}")
        shown = printable(record.step.strip("\n"), tabs=False) or name(step, plan)
        text.append(f"{figures.score(step.score):>6} ", palette.scale(tree.part(step)))
        if step is node and record.written:
            text.append_text(step_text(node, palette, "\n       ")).append("\n")
            continue
        text.append(shown.replace("\n", "\n       "), palette.text if step is not node else f"bold {palette.text}")
        text.append("\n")
    return text


def _indented(lines: str) -> str:
    """Lines below a score."""
    return "".join(f"       {line}\n" for line in lines.split("\n"))


def values(node: CandidateNode, palette: Palette) -> Text:
    """Its columns, and the matches that it played."""
    text = Text()
    for name_, value in node.values.items():
        shown = f"{value:.5g}" if isinstance(value, float) else figures.NONE if value is None else str(value)
        text.append(f"{one_line(name_)} ", palette.muted).append(f"{one_line(shown)}  ", f"bold {palette.text}")
    if node.matches:
        won = sum(chance >= 0.5 for _, chance in node.matches)
        text.append("matches ", palette.muted).append(f"{won} of {len(node.matches)} won  ", f"bold {palette.text}")
        chances = " ".join(f"{chance:.2f}" for _, chance in node.matches)
        text.append("chances ", palette.muted).append(f"{chances}  ", palette.text)
    return text


def ranking_head(ranking: Ranking, plan: PlanTree | None, palette: Palette) -> Text:
    """Which selection it is, how many it kept, and the scale of the bars."""
    text = Text(_which(ranking).removeprefix(", ") or "ranking", style=f"bold {palette.text}")
    text.append(f"  {ranking.kept} of {len(ranking.ranked)} kept", palette.muted)
    low, high = ranking.span
    if ranking.kind == "TopK" and not is_share(ranking.span):
        text.append(f"  bars from {figures.score(low)} to {figures.score(high)}", palette.muted)
    return text.append(f"  {operator_text(plan, ranking.operator)}\n", palette.muted)


def ranking_table(
    tree: SearchTree, ranking: Ranking, chosen: CandidateNode, width: int, palette: Palette, most: int
) -> Text:
    """The round's candidates by rank, and a line where the cut was; before them the votes by answer."""
    text = tally(tree, ranking, width, palette)
    chosen = tree.ranked_row(chosen)
    # Where all votes weigh the same, the answers are told.
    answers = ranking.selection.keys if ranking.tally and ranking.span[0] == ranking.span[1] else None
    shown = ranking.ranked[:most]
    for place, candidate in enumerate(shown, 1):
        if place - 1 == ranking.kept and ranking.cuts:
            text.append("╌" * 12 + " cut ".ljust(width - 12, "╌")[: max(width - 12, 0)] + "\n", palette.warn)
        node, key = candidate.node, candidate.key
        here = node is chosen
        part = part_of(key, ranking.span)
        line = Text(f"{'▸' if here else ' '}{place:>3} ", style=palette.accent if here else palette.muted)
        sign, _, colour = FATES[tree.fate(node.writer if node.writer.answer else node)]
        line.append(f"{'●' if sign == '=' and candidate.kept else sign} ", getattr(palette, colour))
        if answers is not None and place <= len(answers):
            answer = "" if answers[place - 1] is None else one_line(str(answers[place - 1]))
            line.append_text(cell(Text(answer, style=palette.text), 15)).append(" ")
        else:
            line.append(f"{figures.score(key):>6} ", palette.scale(part))
            line.append_text(cell(Text(figures.bar(part or 0.0, 8), style=palette.scale(part)), 9))
        colour = palette.text if candidate.kept else palette.muted
        copies = f"×{node.copies} " if ranking.copies else ""
        step = Text(copies + in_line(node.writer.record.step), style=f"bold {colour}" if here else colour)
        line.append_text(cell(step, max(width - 23, 8)))
        text.append_text(line).append("\n")
    if len(ranking.ranked) > most:
        text.append(f"     and {len(ranking.ranked) - most} more\n", palette.muted)
    return text


def groups_table(tree: SearchTree, ranking: Ranking, palette: Palette, width: int) -> Text:
    """The groups of a round below each other, each with its cut; empty where rows do not stand in groups."""
    text = Text()
    groups = groups_beside(tree, ranking)
    for own in groups if len(groups) > 1 else ():
        here = own.selection is ranking.selection
        line = Text(f"{'▸' if here else ' '}group {one_line(own.selection.group or '')}".ljust(11), palette.accent)
        for place, one in enumerate(own.ranked):
            line.append(" ╎" if place == own.kept else "", palette.warn)
            line.append(f" {figures.score(one.key)}", palette.text if one.kept else palette.muted)
        line.truncate(width, overflow="ellipsis")
        text.append_text(line).append("\n")
    return text


def weight(value: float) -> str:
    """A weight of a vote, or a sum of such."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def votes(ranking: Ranking | None, palette: Palette) -> Text:
    """The votes by answer in one line; empty where it is no vote."""
    text = Text()
    for place, own in enumerate(() if ranking is None else ranking.tally):
        answer = "no vote" if own.answer is None else one_line(own.answer)
        style = f"bold {palette.good}" if place == 0 and own.answer is not None else palette.muted
        text.append(" · " if place else "", palette.muted).append(answer, style)
        count = own.rows if own.answer is None else own.total
        text.append(f" ×{count:g}" if count == int(count) else f" {weight(count)}", palette.text)
    return text


def tally(tree: SearchTree, ranking: Ranking, width: int, palette: Palette) -> Text:
    """The votes by answer, the winner first, and how many samples nobody waited for; empty where it is no vote."""
    votes = ranking.tally
    text = Text()
    most = max((vote.total for vote in votes), default=0.0) or 1.0
    for place, vote in enumerate(votes):
        answer = "no vote" if vote.answer is None else one_line(vote.answer)
        style = palette.muted if vote.answer is None else f"bold {palette.good}" if place == 0 else palette.text
        text.append_text(cell(Text(answer, style=style), min(max(width // 3, 8), 24))).append(" ")
        count = vote.rows if vote.answer is None else vote.total
        text.append_text(cell(Text(figures.bar(vote.total / most, 10), style=palette.accent), 11))
        text.append(weight(count), palette.text)
        text.append(
            "\n" if vote.total == vote.rows or vote.answer is None else f" of {vote.rows} rows\n", palette.muted
        )
    if votes and tree.given_up:
        text.append(f"{tree.given_up} given up: they could not change it\n", palette.muted)
    return text
