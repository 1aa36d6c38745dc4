"""Verifier: whether its scores tell right answers from wrong ones, what more samples would have come to, and the rows
that it misled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from qpdsl.grammar.printable import one_line
from qpdsl.tui.screens.candidate import lost_text, operator_text
from qpdsl.tui.screens.view import Copies, View
from qpdsl.tui.state.run_state import RowState, RunState
from qpdsl.tui.state.verifier import Misled, VerifierQuality, Width, qualities_of, wider_cuts, widths
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.line_list import LineList
from qpdsl.tui.widgets.palette import NO_COLOURS, Palette
from qpdsl.tui.widgets.table import Heading, TableColumn, as_wide_as, fitted, row

_BAR = 16
# From so many rows on, figures are counted again at this factor.
_MANY, _NOTICEABLE = 400, 1.02
COLUMNS = (
    TableColumn("row", "wrong row", 24, right=False, weight=100),
    TableColumn("right", "right at", 8, weight=80),
    TableColumn("wrong", "wrong at", 8, weight=80),
    TableColumn("why", "why", 0, right=False, weight=90, least=24),
)


# Columns that stand where the answers of a wrong row have scores.
_SCORES = ("right", "wrong")


class WrongLines(LineList):
    """The rows that the verifier misled, then those that lost a right answer otherwise."""

    def __init__(self) -> None:
        super().__init__(id="verifier-lines")
        self.columns: Sequence[TableColumn] = COLUMNS

    def show(self, wrong: Sequence[tuple[str, Misled | None, str]]) -> None:
        """Scores have columns where there are any."""
        ranked = any(misled is not None for _, misled, _ in wrong)
        first, *others = COLUMNS
        names = as_wide_as(first, [one_line(id_) for id_, _, _ in wrong], first.width)
        self.columns = [names, *(column for column in others if ranked or column.name not in _SCORES)]
        self.set_items(wrong, lambda item: item[0])

    def line(self, index: int, width: int, palette: Palette) -> Text:
        id_, misled, why = self.items[index]
        values = {
            "row": Text(one_line(id_), style=palette.text),
            "right": Text("" if misled is None else figures.score(misled.right), style=palette.text),
            "wrong": Text("" if misled is None else figures.score(misled.wrong), style=palette.text),
            "why": Text(why, style=palette.warn),
        }
        return row(fitted(self.columns, width), values)


class VerifierView(View):
    """Enter shows how a row was searched."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._known: tuple[RunState, bool, int] | None = None
        self._misled: dict[str, Misled] = {}

    def compose(self) -> ComposeResult:
        yield Static(id="verifier-figures")
        yield Heading(COLUMNS)
        yield WrongLines()
        yield Static(id="verifier-foot", classes="foot")

    def draw(self) -> None:
        state, palette = self.state, Palette.of(self.app)
        # They take as long as there are rows: of many they are counted again where there are noticeably more.
        grown = state.done if state.done < _MANY else int(math.log(state.done, _NOTICEABLE))
        if self._known != (stamp := (state, state.ended is not None, grown)):
            self._known = stamp
            self._misled = {one.row: one for quality in qualities(state) for one in quality.misled}
            self.query_one("#verifier-figures", Static).update(Text("\n").join(verifier_lines(state, palette)))
        wrong = list(self._wrong())
        lines, heading = self.query_one(WrongLines), self.query_one(Heading)
        lines.show(wrong)
        heading.show(lines.columns)
        lines.visible = heading.visible = bool(wrong)
        self.query_one("#verifier-foot", Static).update(self._foot(palette))

    def on_line_list_entered(self) -> None:
        if (item := self.query_one(WrongLines).item) is not None:
            self.post_message(self.Opened(item[0]))

    def copies(self) -> Copies:
        item = self.query_one(WrongLines).item
        told = "\n".join(line.plain for line in verifier_lines(self.state, NO_COLOURS))
        return [("these figures", told), ("id of the row", "" if item is None else item[0])]

    def words(self) -> tuple[str, ...]:
        told = ("AUC", "within a row", "ties", "calibration", "misled", "pass@k", "taken", "wider cut")
        return (*told, *(column.title for column in self.query_one(WrongLines).columns if column.name in _SCORES))

    def _wrong(self) -> Iterator[tuple[str, Misled | None, str]]:
        """Rows, the wrong ones first, and what became of their right answers."""
        misled = self._misled
        rows: Sequence[RowState] = [own for own in self.state.rows.values() if own.correct is False]
        for own in rows:
            if own.id in misled or own.lost is not None:
                why = "a wrong answer stood above it" if own.lost is None else lost_text(own.lost, self.state.plan)
                yield own.id, misled.get(own.id), why.removeprefix("a right answer was lost: ")

    def _foot(self, palette: Palette) -> Text:
        wrong = [own for own in self.state.rows.values() if own.correct is False]
        had = sum(any(answer.right for answer in own.graded) or own.lost is not None for own in wrong)
        if not self.state.judged:
            return Text("")
        told = f" {len(wrong):,} wrong row{'s' * (len(wrong) != 1)}, {had:,} of them had a right answer"
        return Text(told, style=palette.muted)


def verifier_lines(state: RunState, palette: Palette) -> Iterator[Text]:
    """What each verifier is worth, and whether more samples or a wider cut would have helped."""
    if not state.judged:
        yield Text("no row has been graded yet: without right answers nothing can be said", style=palette.muted)
        return
    found, answers = qualities(state), sum(len(own.graded) for own in state.rows.values())
    for quality in found:
        scorer = operator_text(state.plan, state.scorers.get(quality.column, ""))
        yield from quality_lines(quality, answers, scorer, palette)
    if not found:
        yield Text("no answer has a score", style=palette.muted)
    yield width_line(widths([own.graded for own in state.rows.values()]), state, palette)
    lost = [own.lost.place for own in state.rows.values() if own.lost is not None and own.lost.place]
    if lost:
        text = Text(f"{'wider cut':<13} ", style=palette.muted)
        text.append(f"{len(lost):,} right answers were below the cut: ", palette.muted)
        shown = [f"width {width} keeps {kept}" for width, kept in wider_cuts(lost)]
        yield text.append(", ".join(shown), palette.text)


def qualities(state: RunState) -> list[VerifierQuality]:
    return qualities_of(answer for own in state.rows.values() for answer in own.graded)


def quality_lines(quality: VerifierQuality, answers: int, scorer: str, palette: Palette) -> Iterator[Text]:
    """What a column of scores is worth, which not all of the `answers` of rows have."""
    text = Text.assemble((f"{'verifier':<13} ", palette.muted), (one_line(quality.column), f"bold {palette.accent}"))
    scored = f"  {_answers(quality.answers)}, {figures.share(quality.right / quality.answers)} right"
    if quality.answers < answers:
        scored = f"  it has read {quality.answers:,} of {_answers(answers)} to the end; of these"
        scored += f" {figures.share(quality.right / quality.answers)} right"
    yield text.append(f" by {scorer}" if scorer else "", palette.text).append(scored, palette.muted)
    text = Text(f"{'AUC':<13} ", style=palette.muted)
    if quality.auc is None:
        which = "the one answer with a score is" if quality.answers == 1 else "all answers with a score are"
        yield text.append(f"unknown: {which} {'right' if quality.right else 'wrong'}", palette.text)
    else:
        words = (
            "no better than chance" if quality.auc <= 0.55 else "the chance that a right answer stands above a wrong"
        )
        text.append(f"{quality.auc:.3f}", f"bold {palette.text}").append(f"  {words}", palette.muted)
        yield text
    if quality.pairs:
        text = Text(f"{'within a row':<13} ", style=palette.muted)
        ranked = f"{quality.ranked:,} of {quality.pairs:,} pairs ranked right, {quality.tied:,} ties"
        text.append(figures.share(quality.ranked / quality.pairs), f"bold {palette.text}")
        yield text.append(f"  {ranked}", palette.muted)
    if quality.error is not None:
        text = Text(f"{'calibration':<13} ", style=palette.muted).append(f"off by {quality.error:.3f}", palette.text)
        yield text.append("  the share that is right, by score:", palette.muted)
        for own in quality.bins:
            text = Text(f"  {own.low:.1f} to {own.high:.1f}  ", style=palette.muted)
            text.append(figures.bar(own.right, _BAR).ljust(_BAR), palette.accent)
            text.append(f" {figures.share(own.right):>4}", palette.text)
            yield text.append(f"  of {own.answers:,}, mean score {own.score:.3f}", palette.muted)
    else:
        yield Text(f"{'calibration':<13} none: these scores are no shares", style=palette.muted)
    text = Text(f"{'misled':<13} ", style=palette.muted).append(f"{len(quality.misled):,}", f"bold {palette.text}")
    taken = sum(one.taken for one in quality.misled)
    yield text.append(f"  rows: a wrong answer stood above all right ones, {taken:,} took it", palette.muted)


def _answers(count: int) -> str:
    return f"{count:,} answer{'s' * (count != 1)}"


def width_line(found: Sequence[Width], state: RunState, palette: Palette) -> Text:
    """Whether more samples would have helped: pass@k beside what was taken."""
    text = Text(f"{'pass@k':<13} ", style=palette.muted)
    for one in found:
        text.append(f"{one.samples}: ", palette.muted).append(f"{figures.share(one.passed)}  ", palette.text)
    taken = figures.share(state.right / state.judged)
    return text.append(f"taken {taken}", f"bold {palette.text}") if found else text.append("no answers", palette.muted)
