"""A page about one saved run, or about several beside the first: figures, differences, problems, a plot.

Its style is that of `tui/report`. The page loads nothing from elsewhere, and nothing that a model wrote is markup in
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qpdsl.errors import shorten
from qpdsl.planner.values.value import shown
from qpdsl.runs.compare.comparison import Comparison, Pair, compare
from qpdsl.runs.compare.comparison_text import (
    OPERATOR_COLUMNS,
    accuracy_cells,
    amount,
    cost_cells,
    notes,
    operator_cells,
    p_text,
    percent,
    right_answer,
    side_notes,
    verdict,
)
from qpdsl.runs.compare.divergence_text import HEAD, summary_facts, table_rows
from qpdsl.runs.compare.first_divergences import FirstDivergences
from qpdsl.runs.compare.side import ComparedProblem, Side
from qpdsl.runs.evaluation import CellFigures
from qpdsl.runs.plots import Point, Scatter, svg
from qpdsl.runs.statistics import holm, on_front
from qpdsl.tui.report.elements import code, facts, folded, framed, paragraphs, section, table, text, without_empty

# A field with more values than this is no group.
_MAX_GROUPS = 12
_MAX_FLIPS = 500
_MAX_PROBLEMS = 2000
_LONGEST = 300
_NONE = "–"


def figures_of(problems: Sequence[ComparedProblem]) -> CellFigures | None:
    """The figures of some problems of a side; None where there is none."""
    if not problems:
        return None
    seeds = range(len(problems[0].rows))
    return CellFigures.of([{at: one.rows[seed].outcome for at, one in enumerate(problems)} for seed in seeds])


def group_fields(sides: Sequence[Side]) -> dict[str, list[Any]]:
    """The fields of the rows that make groups, from 2 to 12 of them, with their values in order."""
    values: dict[str, set[Any]] = {}
    for side in sides:
        for problem in side.problems:
            for name, value in problem.rows[0].fields.items():
                values.setdefault(name, set()).add(value)
    return {
        name: sorted(found, key=lambda value: (isinstance(value, str), value))
        for name, found in values.items()
        if 2 <= len(found) <= _MAX_GROUPS
    }


# The programs and the letters of sides, with their figures.
Named = Sequence[tuple[str, str, CellFigures]]


def plots(sides: Named) -> list[str]:
    """A picture over tokens and one over seconds, each as SVG, where that was measured of all sides."""
    drawn = [
        _plot(sides, "Accuracy against tokens", "tokens out a problem", lambda figures: figures.tokens),
        _plot(sides, "Accuracy against seconds", "engine seconds a problem", lambda figures: figures.seconds),
    ]
    return [svg(scatter) for scatter in drawn if scatter is not None]


def _plot(sides: Named, title: str, label: str, cost: Callable[[CellFigures], float | None]) -> Scatter | None:
    places = [(cost(figures), figures.accuracy, figures.interval) for _, _, figures in sides]
    known = [(x, y, ends) for x, y, ends in places if x is not None and y is not None and ends is not None]
    if not known or len(known) < len(places):
        return None
    front = on_front([(x, y) for x, y, _ in known])
    points = [
        Point(program, x, y, ends.low, ends.high, label=letter, front=is_front)
        for (program, letter, _), (x, y, ends), is_front in zip(sides, known, front, strict=True)
    ]
    return Scatter(title, label, "accuracy", points)


@dataclass(frozen=True, slots=True)
class _Shown:
    """A side on the page: the letter that it is called by, and its figures, None where no problem is finished."""

    letter: str
    side: Side
    figures: CellFigures | None


def runs_page(sides: Sequence[Side], divergences: FirstDivergences | None = None) -> str:
    """One HTML file that loads nothing, about one side, or about several beside the first of them.

    `divergences`: where the problems of two sides parted. Raises UsageError where a side has no problem in common with
    the first.
    """
    shown_sides = [_Shown(_letter(number), side, figures_of(side.problems)) for number, side in enumerate(sides)]
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
        *_divergences(divergences),
        *_problems(first, alone=not others),
        _programs(shown_sides),
    ]
    return framed(title, f"<h1>{text(programs)}</h1>", "\n".join(body))


def _letter(number: int) -> str:
    """A, B… Z, A1, B1…"""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


def _notes(sides: Sequence[_Shown], comparisons: Sequence[tuple[_Shown, Comparison]]) -> Iterator[str]:
    lines = [note for _, comparison in comparisons for note in notes(comparison)]
    if not comparisons:
        lines = list(side_notes(sides[0].side))
    if lines:
        yield f'<div class="notes">{paragraphs(dict.fromkeys(lines))}</div>'


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
    first = sides[0].side
    known = [(name, value) for name, value in _settings(first).items() if name not in varied]
    known.append(("machine", first.record.machine))
    return facts(known) + section("Runs", table("Runs", head, rows, numbers=numbers), hint=hint)


def _settings(side: Side) -> dict[str, str]:
    """Data, grader, models and parameters of a side, by the names that the page has for them."""
    record = side.record
    settings = {"input": record.input, "grader": record.grader}
    settings |= {f"model {name}": model for name, model in record.models.items()}
    return settings | {name: shown(value) for name, value in record.parameters.items()}


def _setting(side: Side, name: str) -> str:
    return shorten(_settings(side).get(name, ""), 40)


def _varied(sides: Sequence[_Shown]) -> list[str]:
    """The settings in which the sides differ."""
    settings = [_settings(one.side) for one in sides]
    names = dict.fromkeys(name for own in settings for name in own)
    return [name for name in names if len({own.get(name) for own in settings}) > 1]


def _cells(figures: CellFigures | None) -> list[str]:
    if figures is None:
        return ["0", _NONE, _NONE, _NONE, _NONE]
    seconds = _NONE if figures.seconds is None else amount(figures.seconds)
    costs = [amount(figures.tokens), amount(figures.tokens_in), seconds]
    return [f"{figures.problems:,}", _share_cell(figures), *costs]


def _share_cell(figures: CellFigures | None) -> str:
    if figures is None or figures.accuracy is None or figures.interval is None:
        return _NONE
    return percent(figures.accuracy, figures.interval)


def _group_cell(side: Side, field: str, value: Any) -> str:
    """The accuracy over the problems of a side whose records have this value in a field."""
    return _share_cell(figures_of([one for one in side.problems if one.rows[0].fields.get(field) == value]))


def _pictures(sides: Sequence[_Shown]) -> Iterator[str]:
    known = [(one.side.record.program, one.letter, one.figures) for one in sides if one.figures is not None]
    drawn = plots(known) if len(known) > 1 else []
    if drawn:
        yield section("Accuracy and cost", *drawn, hint="Filled points lie on the front: no other has more for less.")


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
    yield section(
        "Against A",
        table("Against A", head, rows, numbers=(1,)),
        paragraphs(verdicts),
        hint=hint if several else "Over the problems that both have.",
    )


def _groups(sides: Sequence[_Shown]) -> Iterator[str]:
    """The accuracy by each field that makes groups."""
    if not any(one.figures is not None and one.figures.accuracy is not None for one in sides):
        return
    tables = []
    for field, values in group_fields([one.side for one in sides]).items():
        rows = [[shown(value), *(_group_cell(one.side, field, value) for one in sides)] for value in values]
        tables.append(table(f"Accuracy by {field}", [field, *(one.letter for one in sides)], rows, small=True))
    if tables:
        yield section("Accuracy by group", *tables)


def _flips(first: _Shown, other: _Shown, comparison: Comparison) -> str:
    parts = []
    for letter, pairs in ((other.letter, comparison.gained), (first.letter, comparison.lost)):
        title = f"{len(pairs):,} problems are better in {letter}" + (
            f"; the first {_MAX_FLIPS} of them" if len(pairs) > _MAX_FLIPS else ""
        )
        head = ["problem", first.letter, other.letter, "right answer", "asked"]
        parts.append(folded(title, table(title, head, map(_flip, pairs[:_MAX_FLIPS]), wide=(1, 2, 4), tall=True)))
    for name, lines in (("program", comparison.setup.source), ("plan", comparison.setup.plan)):
        if lines:
            parts.append(folded(f"difference of the {name}", code("\n".join(lines))))
    if comparison.operators:
        operators = table(
            "operators", OPERATOR_COLUMNS, map(operator_cells, comparison.operators), numbers=(1, 2, 3, 4)
        )
        parts.append(folded("operators", operators))
    changes = [(change.name, change.first, change.second) for change in comparison.setup.changes]
    if changes:
        parts.insert(0, table("settings", ["differs in", first.letter, other.letter], changes))
    return section(f"{first.letter} and {other.letter}", *parts)


def _divergences(found: FirstDivergences | None) -> Iterator[str]:
    if found is not None:
        summary = table("First divergence", ["", ""], summary_facts(found))
        rows = folded("problems", table("problems", HEAD, table_rows(found)[:_MAX_FLIPS], numbers=(5, 6), tall=True))
        yield section("First divergence", summary, rows, hint="Margins are of perturbed logits.")


def _flip(pair: Pair) -> list[str]:
    one, other = pair
    texts = (one.answers, other.answers, right_answer(one.reference), one.rows[0].asked)
    return [one.id, *(shorten(text, _LONGEST) for text in texts)]


def _problems(first: _Shown, *, alone: bool) -> Iterator[str]:
    """The problems of the only side: those that failed first, then wrong ones."""
    if not alone:
        return
    problems = sorted(first.side.problems, key=_worth_a_look)[:_MAX_PROBLEMS]
    head = ["problem", "right", "answer", "right answer", "tokens out", "error", "candidates", "asked"]
    # What no problem has makes no column.
    shown_at, kept = without_empty(head, [_problem(problem) for problem in problems], 5)
    numbers, wide = ([place for place, at in enumerate(shown_at) if at in of] for of in ((4,), (2, 5, 6, 7)))
    every = len(first.side.problems)
    hints = [f"The first {_MAX_PROBLEMS:,} of {every:,}."] if every > _MAX_PROBLEMS else []
    run = first.side.runs[0].info.id
    hints.append(f"`qpdsl report {run} --trees` makes a page of how each was searched, `qpdsl replay {run}` shows it.")
    drawn = table("Problems", [head[at] for at in shown_at], kept, numbers=numbers, wide=wide, tall=True)
    yield section("Problems", drawn, hint=" ".join(hints))


def _worth_a_look(problem: ComparedProblem) -> tuple[bool, float]:
    failed = any(row.outcome.failure is not None for row in problem.rows)
    return not failed, 2.0 if problem.correct is None else problem.correct


def _problem(problem: ComparedProblem) -> list[str]:
    share = problem.correct
    right = _NONE if share is None else {0.0: "✖ no", 1.0: "✔ yes"}.get(share, f"{share:.0%}")
    errors = dict.fromkeys(row.outcome.failure or row.outcome.unanswered for row in problem.rows)
    texts = (problem.answers, right_answer(problem.reference))
    return [
        problem.id,
        right,
        *(shorten(text, _LONGEST) for text in texts),
        amount(problem.tokens_out),
        shorten("; ".join(error for error in errors if error), _LONGEST),
        shorten(_candidates(problem), _LONGEST),
        shorten(problem.rows[0].asked, _LONGEST),
    ]


def _candidates(problem: ComparedProblem) -> str:
    """What came to the last choice, each answer with how many had it; empty where that was not recorded."""
    found = [candidate for row in problem.rows for candidate in row.outcome.candidates or ()]
    answers = Counter((shown(candidate["answer"]), candidate.get("correct")) for candidate in found)
    marks = {True: "✔ ", False: "✖ ", None: ""}
    return ", ".join(f"{marks[right]}{answer} ×{count}" for (answer, right), count in answers.most_common())


def _programs(sides: Sequence[_Shown]) -> str:
    """Each program's text and plan, once for all sides that have it."""
    parts = []
    for name in ("source", "plan"):
        letters: dict[str, list[str]] = {}
        for one in sides:
            letters.setdefault(getattr(one.side.record, name), []).append(one.letter)
        title = {"source": "program", "plan": "plan"}[name]
        parts += [
            folded(title if len(sides) == 1 else f"{title} of {', '.join(own)}", code(text))
            for text, own in letters.items()
        ]
    return section("Programs and plans", *parts)
