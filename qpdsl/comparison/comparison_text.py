"""A comparison in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from qpdsl.comparison.comparison import Comparison, Figure, GroupFigure, Pair
from qpdsl.comparison.operator_figures import OperatorPair
from qpdsl.comparison.setup_changes import SetupChange
from qpdsl.comparison.side import Problem, Side
from qpdsl.comparison.verdict import between, p_text, points, verdict
from qpdsl.errors import shorten
from qpdsl.measures.statistics.intervals import Interval
from qpdsl.planner.values.json_values import shown

FIRST, SECOND = "A", "B"
_LONGEST_ID, _LONGEST_ANSWER = 24, 36
_LONGEST_CHANGE = 40
_LONGEST_OPERATOR = 44
_NONE = "–"
OPERATOR_COLUMNS = ("operator", "rows", "tokens out", "tokens in", "seconds")
_MOST_LISTED = 8


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


def _listed(problems: Sequence[Problem]) -> str:
    names = [f"`{shorten(problem.id, _LONGEST_ID)}`" for problem in problems[:_MOST_LISTED]]
    return ", ".join(names) + ("…" if len(problems) > _MOST_LISTED else "")
