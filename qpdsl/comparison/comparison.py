"""Two sides beside each other, problem by problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from qpdsl.comparison.matching import Matching, matched
from qpdsl.comparison.operator_figures import OperatorPair, operator_pairs
from qpdsl.comparison.setup_changes import Setup, setup
from qpdsl.comparison.side import Problem, Side
from qpdsl.errors import UsageError
from qpdsl.measures.statistics.intervals import Interval, bootstrap_interval
from qpdsl.measures.statistics.paired_tests import PairedResult, paired_values
from qpdsl.measures.statistics.power import detectable_difference
from qpdsl.measures.statistics.seed_shares import share_interval, shares_compared

Pair = tuple[Problem, Problem]
# What a problem costs: by name, how it is read, and whether 0 means that nobody measured it.
_COSTS: tuple[tuple[str, Callable[[Problem], float], bool], ...] = (
    ("tokens out", lambda problem: problem.tokens_out, False),
    ("tokens in", lambda problem: problem.tokens_in, False),
    ("engine seconds", lambda problem: problem.engine_seconds, True),
)


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
        """Tokens, and the engine's seconds where both sides measured them, over all shared problems."""
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
    for name, read, is_optional in _COSTS:
        first, second = ([read(problem) for problem in side] for side in zip(*pairs, strict=True))
        if is_optional and not (any(first) and any(second)):
            continue
        intervals = (bootstrap_interval(first), bootstrap_interval(second))
        figures.append(Figure(name, fmean(first), fmean(second), *intervals, paired_values(first, second)))
    return figures
