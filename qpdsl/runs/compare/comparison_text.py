"""A comparison in a terminal: its notes, its figures, and its verdict in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from qpdsl.errors import shorten
from qpdsl.planner.values.value import shown
from qpdsl.runs.compare.comparison import Comparison, Figure, GroupFigure, OperatorPair, Pair
from qpdsl.runs.compare.side import ComparedProblem, SetupChange, Side
from qpdsl.runs.evaluation_text import signed_points
from qpdsl.runs.statistics import POWER, Interval
from qpdsl.runs.summary import grader_failed

# How the second side stands to the first.
Kind = Literal["better", "worse", "unclear", "equal", "ungraded"]

_LONGEST_CHANGE = 40
_LONGEST_OPERATOR = 44
_NONE = "–"
OPERATOR_COLUMNS = ("operator", "rows", "tokens out", "tokens in", "seconds")
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class Verdict:
    """`better` and `worse` are significant at 5%. `equal`: no answer differs. `ungraded`: nothing says who is right."""

    kind: Kind
    text: str


def verdict(comparison: Comparison, first: str = "A", second: str = "B") -> Verdict:
    """What a comparison says, with these names for its sides."""
    pairs = len(comparison.matching.pairs)
    differ = comparison.other_answers + len(comparison.gained) + len(comparison.lost)
    if not differ:
        return Verdict("equal", f"{first} and {second} give the same answer to {_every(pairs)}")
    figure = comparison.accuracy
    if figure is None or comparison.detectable is None:
        return Verdict(
            "ungraded", f"answers to {differ:,} of {pairs:,} problems differ, and nothing says which are right"
        )
    paired = figure.paired
    said = f"{points(paired.difference)} {between(paired.interval)}, {p_text(paired.p_value)}"
    if paired.is_significant():
        kind: Kind = "better" if paired.difference > 0 else "worse"
        return Verdict(kind, f"{second} is {kind}: {said}")
    seen = f"{100 * comparison.detectable:.1f} points would be seen {POWER:.0%} of the time"
    return Verdict("unclear", f"no difference can be told: {said}; over {paired.pairs:,} problems, {seen}")


def points(difference: float) -> str:
    """A difference of shares, in points of a hundred."""
    return f"{signed_points(difference)} points"


def between(interval: Interval) -> str:
    """An interval of differences of shares, in points."""
    return f"({signed_points(interval.low)} to {signed_points(interval.high)})"


def p_text(p_value: float) -> str:
    """A p-value with as many digits as it deserves."""
    if p_value < 0.001:
        return "p < 0.001"
    return f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def _every(pairs: int) -> str:
    return "the one problem" if pairs == 1 else f"all {pairs:,} problems"


FIRST, SECOND = "A", "B"
_LONGEST_ID, _LONGEST_ANSWER = 24, 36


def comparison_lines(
    comparison: Comparison, *, rows: int, groups: Sequence[GroupFigure] = (), field: str = ""
) -> list[str]:
    """The comparison for people, with up to `rows` problems that flipped each way, and the accuracy by `groups`."""
    parts: list[list[str]] = [
        [f"{FIRST}  {_side(comparison.first)}", f"{SECOND}  {_side(comparison.second)}"],
        list(_setup(comparison)),
        list(_shared(comparison)),
        list(_figures(comparison)),
        list(_operators(comparison)),
        list(_groups(groups, field)),
        list(_flips(comparison, rows)),
        [verdict(comparison, FIRST, SECOND).text],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part).split("\n")


def percent(share: float, interval: Interval) -> str:
    """A share with its interval."""
    return f"{share:.1%} ({100 * interval.low:.1f} to {100 * interval.high:.1f})"


def amount(value: float) -> str:
    """Tokens or seconds, with as many digits as say something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.3g}"


def set_parameters(side: Side) -> str:
    """The parameters of a side that hold for all rows, as `--set` takes them."""
    return ", ".join(f"{name}={shorten(shown(value), 24)}" for name, value in side.record.parameters.items())


def columns(rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Rows of cells in columns, those of the numbers `right` at the right."""
    table = [list(row) for row in rows]
    widths = [max(len(row[number]) for row in table) for number in range(len(table[0]))] if table else []
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _side(side: Side) -> str:
    record = side.record
    head = " ".join(filter(None, (record.program, set_parameters(side))))
    seeds = f"seed{'s' * (len(side.seeds) > 1)} {', '.join(map(str, side.seeds))}"
    states = ", ".join(
        f"{len(run.rows):,} of {run.record.rows:,} rows{'' if run.info.state == 'finished' else f' ({run.info.state})'}"
        for run in side.runs
    )
    return f"{side.name}: {head}, {seeds}, {states}"


def _setup(comparison: Comparison) -> Iterator[str]:
    setup = comparison.setup
    if setup.changes:
        yield "differs in"
        rows = [(f"  {change.name}", _change(change)) for change in setup.changes]
        yield from columns(rows)
    for name, lines in (("program", setup.source), ("plan", setup.plan)):
        if lines:
            yield f"difference of the {name}"
            yield from (f"  {line}" for line in lines)


def _change(change: SetupChange) -> str:
    if not change.first and not change.second:
        return ""
    return f"{shorten(change.first, _LONGEST_CHANGE)} → {shorten(change.second, _LONGEST_CHANGE)}"


def _shared(comparison: Comparison) -> Iterator[str]:
    matching = comparison.matching
    noise = "the same random numbers" if comparison.setup.same_noise else "random numbers of their own"
    yield f"{len(matching.pairs):,} problems in common, {noise}"
    if matching.reworded:
        yield f"  {matching.reworded:,} of them are known by id and right answer alone: their texts differ"
    for name, only in ((FIRST, matching.only_first), (SECOND, matching.only_second)):
        if only:
            yield f"  {len(only):,} are in {name} only: {_listed(only)}"


def _figures(comparison: Comparison) -> Iterator[str]:
    rows = [("", FIRST, SECOND, f"{SECOND} less {FIRST}")]
    if comparison.accuracy is not None:
        rows.append(("accuracy", *accuracy_cells(comparison.accuracy)))
    rows += [(f"{figure.name} a problem", *cost_cells(figure)) for figure in comparison.costs]
    yield from columns(rows)


def accuracy_cells(figure: Figure) -> tuple[str, str, str]:
    """Both sides with their intervals, and the difference with its interval and its p-value."""
    paired = figure.paired
    return (
        percent(figure.first, figure.first_interval),
        percent(figure.second, figure.second_interval),
        f"{points(paired.difference)} {between(paired.interval)}, {p_text(paired.p_value)}",
    )


def cost_cells(figure: Figure) -> tuple[str, str, str]:
    """The same of tokens or seconds, with the change as a share of the first side."""
    paired = figure.paired
    if not figure.paired.gained and not figure.paired.lost:
        return amount(figure.first), amount(figure.second), "equal for every problem"
    change = "" if figure.change is None else f" ({figure.change:+.1%})"
    low, high = (f"{'+' * (end > 0)}{amount(end)}" for end in (paired.interval.low, paired.interval.high))
    difference = f"{'+' * (paired.difference > 0)}{amount(paired.difference)}"
    return (
        amount(figure.first),
        amount(figure.second),
        f"{difference}{change} ({low} to {high}), {p_text(paired.p_value)}",
    )


def _operators(comparison: Comparison) -> Iterator[str]:
    if comparison.operators:
        yield f"operators, all rows of {FIRST} → all rows of {SECOND}"
        yield from columns([OPERATOR_COLUMNS, *map(operator_cells, comparison.operators)], right=(1, 2, 3, 4))


def operator_cells(pair: OperatorPair) -> tuple[str, ...]:
    """An operator with its rows, tokens and seconds on both sides; one figure where they are equal."""
    one, other = pair
    texts = [shorten(side.operator, _LONGEST_OPERATOR) for side in pair if side is not None]
    cells = []
    for name in ("rows_out", "tokens_out", "tokens_in", "seconds"):
        values = dict.fromkeys(_NONE if side is None else _total(getattr(side, name)) for side in (one, other))
        cells.append(" → ".join(values))
    return " → ".join(dict.fromkeys(texts)), *cells


def _total(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else amount(value)


def _groups(groups: Sequence[GroupFigure], field: str) -> Iterator[str]:
    if groups:
        head = (field, "problems", FIRST, SECOND, f"{SECOND} less {FIRST}")
        rows = [
            (
                shorten(shown(group.value), _LONGEST_ID),
                f"{group.accuracy.paired.pairs:,}",
                *accuracy_cells(group.accuracy),
            )
            for group in groups
        ]
        yield from columns([head, *rows], right=(1,))


def _flips(comparison: Comparison, most: int) -> Iterator[str]:
    if comparison.accuracy is not None and (comparison.gained or comparison.lost or comparison.other_answers):
        counts = f"{len(comparison.gained):,} better in {SECOND}, {len(comparison.lost):,} better in {FIRST}"
        yield f"flipped problems: {counts}; {comparison.other_answers:,} more answers differ"
    elif comparison.other_answers:
        yield f"{comparison.other_answers:,} answers differ"
    for name, pairs in ((SECOND, comparison.gained), (FIRST, comparison.lost)):
        if pairs and most:
            yield f"better in {name}" + (f", the first {most} of {len(pairs):,}" if len(pairs) > most else "")
            yield from columns([("  problem", "right answer", FIRST, SECOND), *map(_flip, pairs[:most])])


def _flip(pair: Pair) -> tuple[str, str, str, str]:
    first, second = pair
    return (
        f"  {shorten(first.id, _LONGEST_ID)}",
        shorten(right_answer(first.reference), _LONGEST_ANSWER),
        shorten(first.answers, _LONGEST_ANSWER),
        shorten(second.answers, _LONGEST_ANSWER),
    )


def right_answer(reference: Any) -> str:
    """A reference for people; several right answers are parted by `or`."""
    if reference is None:
        return ""
    return " or ".join(map(shown, reference)) if isinstance(reference, list | tuple) else shown(reference)


def _listed(problems: Sequence[ComparedProblem]) -> str:
    names = [f"`{shorten(problem.id, _LONGEST_ID)}`" for problem in problems[:_MAX_LISTED]]
    return ", ".join(names) + ("…" if len(problems) > _MAX_LISTED else "")


def notes(comparison: Comparison) -> list[str]:
    """In words, a line each, what makes the figures of a comparison say less than they seem to."""
    found = [note for side in (comparison.first, comparison.second) for note in side_notes(side)]
    if comparison.first.name == comparison.second.name:
        found.append("note: both sides are the same run")
    if len(comparison.first.runs) != len(comparison.second.runs):
        found.append("note: one side has more seeds: its accuracy varies less")
    one, other = (side.record.grader for side in (comparison.first, comparison.second))
    if one != other:
        found.append(f"warning: answers were graded by `{one}` and by `{other}`; part of the difference may be theirs")
    if comparison.first.record.machine != comparison.second.record.machine:
        found.append("note: the runs were on different machines, so their seconds say little")
    references = sum(first.reference != second.reference for first, second in comparison.matching.pairs)
    if references:
        found.append(f"warning: {references:,} problems have another right answer in the second run")
    return found


def side_notes(side: Side) -> Iterator[str]:
    """The same of one side by itself."""
    for run in side.unfinished:
        yield f"note: run `{run.info.id}` is {run.info.state}: {len(run.rows):,} of {run.record.rows:,} rows are there"
    failed = sum(row.outcome.failure is not None for run in side.runs for row in run.rows)
    if failed:
        what = "a row failed" if failed == 1 else f"{failed:,} rows failed"
        yield f"note: {what} in `{side.name}`; such rows count as wrong"
    misgraded = sum(row.outcome.grader_error is not None for run in side.runs for row in run.rows)
    if misgraded:
        yield f"warning: in `{side.name}` {grader_failed(misgraded)}"
