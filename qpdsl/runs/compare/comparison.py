"""Two sides side by side: the problems that they share, and what both came to over these."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from qpdsl.errors import UsageError
from qpdsl.planner.values.value import dumps
from qpdsl.runs.compare.side import ComparedProblem, Setup, Side, setup
from qpdsl.runs.statistics import (
    Interval,
    PairedResult,
    bootstrap_interval,
    detectable_difference,
    paired_values,
    share_interval,
    shares_compared,
)

Mark = Callable[[ComparedProblem], Hashable | None]

Pair = tuple[ComparedProblem, ComparedProblem]
# What a problem costs: by name, how it is read, and on how many sides it is to be more than 0 for it to be shown.
_COSTS: tuple[tuple[str, Callable[[ComparedProblem], float], int], ...] = (
    ("tokens out", lambda problem: problem.tokens_out, 0),
    ("thought tokens", lambda problem: problem.thought_tokens, 1),
    ("tokens in", lambda problem: problem.tokens_in, 0),
    ("engine seconds", lambda problem: problem.engine_seconds, 2),
)


@dataclass(frozen=True, slots=True)
class Matching:
    """Problems of both sides in pairs, in the order of the first, and those of one side alone.

    `reworded` pairs have the same id and right answer, and another text.
    """

    pairs: tuple[tuple[ComparedProblem, ComparedProblem], ...]
    only_first: tuple[ComparedProblem, ...]
    only_second: tuple[ComparedProblem, ...]
    reworded: int


def matched(first: Side, second: Side) -> Matching:
    """Pairs up the problems of two sides; each is in one pair at most."""
    found: dict[int, int] = {}
    for mark in (_by_arguments, _by_id_and_text, _by_text):
        _match(first.problems, second.problems, mark, found)
    reworded: dict[int, int] = {}
    if not found:
        _match(first.problems, second.problems, _by_id_and_reference, reworded)
        # Ids may be no more than numbers of lines, and some right answers of other data will be equal by chance.
        if 2 * len(reworded) >= min(len(first.problems), len(second.problems)):
            found = reworded
        else:
            reworded = {}
    taken = set(found.values())
    return Matching(
        tuple((first.problems[number], second.problems[found[number]]) for number in sorted(found)),
        tuple(problem for number, problem in enumerate(first.problems) if number not in found),
        tuple(problem for number, problem in enumerate(second.problems) if number not in taken),
        len(reworded),
    )


def _by_arguments(problem: ComparedProblem) -> Hashable | None:
    return problem.rows[0].key


def _by_id_and_text(problem: ComparedProblem) -> Hashable | None:
    """The program's parameters are arguments too, so that the same problem has others at another width."""
    row = problem.rows[0]
    return (problem.id, row.asked, dumps(problem.reference)) if row.asked else None


def _by_text(problem: ComparedProblem) -> Hashable | None:
    """The same problem in another file. What is kept of a long text is its beginning, which others may have too."""
    row = problem.rows[0]
    return (row.asked, dumps(problem.reference)) if row.asked and not row.asked.endswith("…") else None


def _by_id_and_reference(problem: ComparedProblem) -> Hashable | None:
    """Other words for the same problem, as another `--map` gives."""
    return (problem.id, dumps(problem.reference)) if problem.reference is not None else None


def _match(
    first: Sequence[ComparedProblem], second: Sequence[ComparedProblem], mark: Mark, found: dict[int, int]
) -> None:
    """Adds to `found` pairs of numbers, of problems that are in none yet and have the same mark, in their order."""
    taken = set(found.values())
    free: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    for number, problem in enumerate(second):
        if number not in taken and (known := mark(problem)) is not None:
            free[known].append(number)
    for number, problem in enumerate(first):
        if number not in found and (known := mark(problem)) is not None and free[known]:
            found[number] = free[known].popleft()


@dataclass(frozen=True, slots=True)
class OperatorSums:
    """An operator as EXPLAIN says it, and what all problems of a run took of it; `seconds` are those of forwards."""

    operator: str
    rows_out: int
    tokens_in: int
    tokens_out: int
    seconds: float


OperatorPair = tuple[OperatorSums | None, OperatorSums | None]


def operator_pairs(first: Side, second: Side) -> list[OperatorPair]:
    """The operators of both sides in the order in which they run, each beside its like in the other.

    They are alike where their ids and kinds are equal. Empty where not all runs of both sides have measured theirs.
    """
    one, other = _by_place(first), _by_place(second)
    if not one or not other:
        return []
    places = [*one, *(place for place in other if place not in one)]
    return [(one.get(place), other.get(place)) for place in places]


def _by_place(side: Side) -> dict[tuple[str, str], OperatorSums]:
    """The operators by id and kind; the sums of several runs."""
    if not all(run.operators for run in side.runs):
        return {}
    sums: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in side.runs:
        for operator in run.operators:
            sums.setdefault((operator["id"], operator["operator"].split(" ")[0]), []).append(operator)
    return {place: _sum(parts) for place, parts in sums.items()}


def _sum(parts: Sequence[Mapping[str, Any]]) -> OperatorSums:
    rows, tokens_in, tokens_out, seconds = (
        sum(part[name] for part in parts) for name in ("rows_out", "tokens_in", "tokens_out", "seconds")
    )
    return OperatorSums(parts[0]["operator"], rows, tokens_in, tokens_out, seconds)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of both sides: the means over the problems that they share, and the second less the first.

    Shares of right answers lie in [0, 1]; tokens and seconds are a problem's.
    """

    name: str
    first: float
    second: float
    first_interval: Interval
    second_interval: Interval
    paired: PairedResult

    @property
    def change(self) -> float | None:
        """The second as a share of the first, less 1; None where the first is 0."""
        return self.second / self.first - 1 if self.first else None


@dataclass(frozen=True, slots=True)
class GroupFigure:
    """The accuracy of the problems whose records have `value` in a field."""

    value: Any
    accuracy: Figure


@dataclass(frozen=True)
class Comparison:
    """What came of it. `accuracy` is None where no shared problem was graded on both sides.

    `detectable` is the difference that would have been seen: see `detectable_difference`. `gained` problems have more
    right answers on the second side, `lost` fewer. `other_answers` counts the rest whose answers differ.
    """

    first: Side
    second: Side
    matching: Matching
    setup: Setup
    accuracy: Figure | None
    detectable: float | None
    gained: tuple[Pair, ...]
    lost: tuple[Pair, ...]
    other_answers: int

    @cached_property
    def costs(self) -> tuple[Figure, ...]:
        """Tokens, those of thoughts where any are, and the engine's seconds where both sides measured them.

        Over all shared problems.
        """
        return tuple(_costs(self.matching.pairs))

    @cached_property
    def operators(self) -> list[OperatorPair]:
        """What the operators took in all rows of either side: see `operator_pairs`."""
        return operator_pairs(self.first, self.second)

    def by_group(self, field: str) -> list[GroupFigure]:
        """The accuracy by the value of a field of the rows, values in order. Raises UsageError where no row has it."""
        groups: dict[Any, list[Pair]] = {}
        for pair in _graded(self.matching.pairs):
            if (value := pair[0].rows[0].fields.get(field)) is not None:
                groups.setdefault(value, []).append(pair)
        if not groups:
            known = sorted({name for problem, _ in self.matching.pairs for name in problem.rows[0].fields})
            help = f"the rows have {', '.join(f'`{name}`' for name in known)}" if known else "the rows have no fields"
            raise UsageError(f"no graded row has a short field `{field}`", help)
        ordered = sorted(groups, key=lambda value: (isinstance(value, str), value))
        return [GroupFigure(value, _accuracy(groups[value])) for value in ordered]


def compare(first: Side, second: Side) -> Comparison:
    """Compares two sides over the problems that both have. Raises UsageError where they have none in common."""
    matching = matched(first, second)
    if not matching.pairs:
        empty = next((side.name for side in (first, second) if not side.problems), None)
        if empty is not None:
            raise UsageError(f"`{empty}` has no finished row to compare")
        raise UsageError("the runs have no problem in common", "two runs are compared over rows that both have")
    graded = _graded(matching.pairs)
    return Comparison(
        first=first,
        second=second,
        matching=matching,
        setup=setup(first, second),
        accuracy=_accuracy(graded) if graded else None,
        detectable=detectable_difference([_gain(pair) for pair in graded]) if graded else None,
        gained=tuple(pair for pair in graded if _gain(pair) > 0),
        lost=tuple(pair for pair in graded if _gain(pair) < 0),
        other_answers=sum(
            one.answers != other.answers and (one.correct is None or one.correct == other.correct)
            for one, other in matching.pairs
        ),
    )


def _graded(pairs: Sequence[Pair]) -> list[Pair]:
    return [pair for pair in pairs if None not in (pair[0].correct, pair[1].correct)]


def _gain(pair: Pair) -> float:
    assert pair[0].correct is not None and pair[1].correct is not None
    return pair[1].correct - pair[0].correct


def _accuracy(graded: Sequence[Pair]) -> Figure:
    first, second = ([problem.correct or 0.0 for problem in side] for side in zip(*graded, strict=True))
    one_each = all(len(problem.rows) == 1 for problem in graded[0])
    paired = shares_compared(first, second, one_seed=one_each)
    return Figure("accuracy", fmean(first), fmean(second), share_interval(first), share_interval(second), paired)


def _costs(pairs: Sequence[Pair]) -> list[Figure]:
    figures = []
    for name, read, sides in _COSTS:
        first, second = ([read(problem) for problem in side] for side in zip(*pairs, strict=True))
        if any(first) + any(second) < sides:
            continue
        intervals = (bootstrap_interval(first), bootstrap_interval(second))
        figures.append(Figure(name, fmean(first), fmean(second), *intervals, paired_values(first, second)))
    return figures
