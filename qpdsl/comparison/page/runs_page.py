"""A page about kept runs: their figures, where they differ from the first of them, and their problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qpdsl.comparison.comparison import Comparison, Pair, compare
from qpdsl.comparison.comparison_text import (
    OPERATOR_COLUMNS,
    accuracy_cells,
    amount,
    cost_cells,
    operator_cells,
    percent,
    right_answer,
)
from qpdsl.comparison.notes import notes, side_notes
from qpdsl.comparison.page import page_parts
from qpdsl.comparison.page.runs_plot import plots
from qpdsl.comparison.page.side_figures import Share, SideFigures, group_fields, group_share, side_figures
from qpdsl.comparison.side import Problem, Side
from qpdsl.comparison.verdict import p_text, verdict
from qpdsl.errors import shorten
from qpdsl.measures.statistics.multiple_tests import holm
from qpdsl.planner.values.json_values import shown
from qpdsl.tui.report.template import filled, part

_MOST_FLIPS = 500
_MOST_PROBLEMS = 2000
_LONGEST = 300
_NONE = "–"


@dataclass(frozen=True, slots=True)
class _Shown:
    """A side on the page: the letter that it is called by, and its figures, None where no problem is finished."""

    letter: str
    side: Side
    figures: SideFigures | None


def runs_page(sides: Sequence[Side]) -> str:
    """One HTML file that loads nothing, about one side, or about several beside the first of them.

    Raises UsageError where a side has no problem in common with the first.
    """
    shown_sides = [_Shown(_letter(number), side, side_figures(side)) for number, side in enumerate(sides)]
    first, *others = shown_sides
    comparisons = [(other, compare(first.side, other.side)) for other in others]
    programs = ", ".join(dict.fromkeys(side.record.program for side in sides))
    title = f"{programs} · {len(sides)} runs" if others else f"{programs} · {sides[0].name}"
    body = [
        *_notes(shown_sides, comparisons),
        _overview(shown_sides),
        *_pictures(shown_sides),
        *_against_first(comparisons),
        *_groups(shown_sides),
        *(_flips(first, other, comparison) for other, comparison in comparisons),
        *_problems(first, alone=not others),
        _programs(shown_sides),
    ]
    values = {
        "title": page_parts.text(title),
        "style": part("report.css"),
        "heading": page_parts.text(programs),
        "body": "\n".join(body),
        "script": part("runs.js"),
    }
    return filled(part("runs.html"), values)


def _letter(number: int) -> str:
    """A, B… Z, A1, B1…"""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


def _notes(sides: Sequence[_Shown], comparisons: Sequence[tuple[_Shown, Comparison]]) -> Iterator[str]:
    lines = [note for _, comparison in comparisons for note in notes(comparison)]
    if not comparisons:
        lines = list(side_notes(sides[0].side))
    if lines:
        yield f'<div id="notes">{page_parts.paragraphs(dict.fromkeys(lines))}</div>'


def _overview(sides: Sequence[_Shown]) -> str:
    varied = _varied(sides)
    head = ["", "program", *varied, "seeds", "problems", "accuracy", "tokens out", "tokens in", "engine s", "run"]
    rows = [
        [
            one.letter,
            one.side.record.program,
            *(_setting(one.side, name) for name in varied),
            ", ".join(map(str, one.side.seeds)),
            *_cells(one.figures),
            one.side.name,
        ]
        for one in sides
    ]
    numbers = range(len(head) - 6, len(head) - 1)
    hint = "Accuracy with its 95% interval; tokens and seconds are means a problem."
    record = sides[0].side.record
    facts = [("input", record.input), ("grader", record.grader)]
    facts += [(f"model {name}", model) for name, model in record.models.items() if f"model {name}" not in varied]
    facts += [(name, shown(value)) for name, value in record.parameters.items() if name not in varied]
    facts.append(("machine", record.machine))
    return f'<dl id="facts">{page_parts.facts(facts)}</dl>' + page_parts.section(
        "Runs", page_parts.table(head, rows, numbers=numbers), hint=hint
    )


def _settings(side: Side) -> dict[str, str]:
    """Parameters and models of a side, by the names that the page has for them."""
    record = side.record
    settings = {name: shown(value) for name, value in record.parameters.items()}
    return settings | {f"model {name}": model for name, model in record.models.items()}


def _setting(side: Side, name: str) -> str:
    return shorten(_settings(side).get(name, ""), 40)


def _varied(sides: Sequence[_Shown]) -> list[str]:
    """The settings in which the sides differ."""
    settings = [_settings(one.side) for one in sides]
    names = dict.fromkeys(name for own in settings for name in own)
    return [name for name in names if len({own.get(name) for own in settings}) > 1]


def _cells(figures: SideFigures | None) -> list[str]:
    if figures is None:
        return ["0", _NONE, _NONE, _NONE, _NONE]
    seconds = _NONE if figures.seconds is None else amount(figures.seconds)
    costs = [amount(figures.tokens_out), amount(figures.tokens_in), seconds]
    return [f"{figures.problems:,}", _share(figures.accuracy), *costs]


def _share(share: Share | None) -> str:
    return _NONE if share is None else percent(share.value, share.interval)


def _pictures(sides: Sequence[_Shown]) -> Iterator[str]:
    known = [(one.side.record.program, one.letter, one.figures) for one in sides if one.figures is not None]
    drawn = plots(known) if len(known) > 1 else []
    if drawn:
        yield page_parts.section(
            "Accuracy and cost", *drawn, hint="Filled points lie on the front: no other has more for less."
        )


def _against_first(comparisons: Sequence[tuple[_Shown, Comparison]]) -> Iterator[str]:
    if not comparisons:
        return
    tested = [comparison.accuracy.paired.p_value for _, comparison in comparisons if comparison.accuracy is not None]
    raised = iter(holm(tested))
    costs = list(dict.fromkeys(figure.name for _, comparison in comparisons for figure in comparison.costs))
    several = ["p of all (Holm)"] if len(tested) > 1 else []
    rows = []
    for other, comparison in comparisons:
        by_name = {figure.name: cost_cells(figure)[2] for figure in comparison.costs}
        accuracy = comparison.accuracy
        rows.append(
            [
                other.letter,
                f"{len(comparison.matching.pairs):,}",
                "the same" if comparison.setup.same_noise else "its own",
                _NONE if accuracy is None else accuracy_cells(accuracy)[2],
                *([p_text(next(raised)) if accuracy is not None else _NONE] if several else []),
                *(by_name.get(name, _NONE) for name in costs),
            ]
        )
    head = ["", "problems", "random numbers", "accuracy", *several, *costs]
    verdicts = (f"{verdict(comparison, 'A', other.letter).text}." for other, comparison in comparisons)
    hint = "Over the problems that both have. Several comparisons at once find something by chance: Holm's p is of all."
    yield page_parts.section(
        "Against A",
        page_parts.table(head, rows, numbers=(1,)),
        page_parts.paragraphs(verdicts),
        hint=hint if several else "Over the problems that both have.",
    )


def _groups(sides: Sequence[_Shown]) -> Iterator[str]:
    """The accuracy by each field that makes groups."""
    if not any(one.figures is not None and one.figures.accuracy is not None for one in sides):
        return
    tables = []
    for field, values in group_fields([one.side for one in sides]).items():
        rows = [[shown(value), *(_share(group_share(one.side, field, value)) for one in sides)] for value in values]
        tables.append(page_parts.table([field, *(one.letter for one in sides)], rows))
    if tables:
        yield page_parts.section("Accuracy by group", *tables)


def _flips(first: _Shown, other: _Shown, comparison: Comparison) -> str:
    parts = []
    for letter, pairs in ((other.letter, comparison.gained), (first.letter, comparison.lost)):
        title = f"{len(pairs):,} problems are better in {letter}" + (
            f"; the first {_MOST_FLIPS} of them" if len(pairs) > _MOST_FLIPS else ""
        )
        head = ["problem", "", "right answer", first.letter, other.letter]
        parts.append(page_parts.folded(title, page_parts.table(head, map(_flip, pairs[:_MOST_FLIPS]), tall=True)))
    for name, lines in (("program", comparison.setup.source), ("plan", comparison.setup.plan)):
        if lines:
            parts.append(page_parts.folded(f"difference of the {name}", page_parts.code("\n".join(lines))))
    if comparison.operators:
        operators = page_parts.table(OPERATOR_COLUMNS, map(operator_cells, comparison.operators), numbers=(1, 2, 3, 4))
        parts.append(page_parts.folded("operators", operators))
    changes = [(change.name, change.first, change.second) for change in comparison.setup.changes]
    if changes:
        parts.insert(0, page_parts.table(["differs in", first.letter, other.letter], changes))
    return page_parts.section(f"{first.letter} and {other.letter}", *parts)


def _flip(pair: Pair) -> list[str]:
    one, other = pair
    texts = (one.rows[0].asked, right_answer(one.reference), one.answers, other.answers)
    return [one.id, *(shorten(text, _LONGEST) for text in texts)]


def _problems(first: _Shown, *, alone: bool) -> Iterator[str]:
    """The problems of the only side, wrong ones first."""
    if not alone:
        return
    problems = sorted(first.side.problems, key=lambda problem: 2.0 if problem.correct is None else problem.correct)
    head = ["problem", "", "right answer", "answer", "right", "tokens out"]
    rows = map(_problem, problems[:_MOST_PROBLEMS])
    hint = f"The first {_MOST_PROBLEMS:,} of {len(problems):,}." if len(problems) > _MOST_PROBLEMS else ""
    yield page_parts.section("Problems", page_parts.table(head, rows, numbers=(5,), tall=True), hint=hint)


def _problem(problem: Problem) -> list[str]:
    share = problem.correct
    right = _NONE if share is None else {0.0: "no", 1.0: "yes"}.get(share, f"{share:.0%}")
    texts = (problem.rows[0].asked, right_answer(problem.reference), problem.answers)
    return [problem.id, *(shorten(text, _LONGEST) for text in texts), right, amount(problem.tokens_out)]


def _programs(sides: Sequence[_Shown]) -> str:
    """Each program's text and plan, once for all sides that have it."""
    parts = []
    for name in ("source", "plan"):
        letters: dict[str, list[str]] = {}
        for one in sides:
            letters.setdefault(getattr(one.side.record, name), []).append(one.letter)
        title = {"source": "program", "plan": "plan"}[name]
        parts += [
            page_parts.folded(title if len(sides) == 1 else f"{title} of {', '.join(own)}", page_parts.code(text))
            for text, own in letters.items()
        ]
    return page_parts.section("Programs and plans", *parts)
