"""The figures of one side by itself, over all of its problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from qpdsl.comparison.side import Problem, Side
from qpdsl.measures.statistics.intervals import Interval
from qpdsl.measures.statistics.seed_shares import share_interval

# A field with more values than this is no group.
_MOST_GROUPS = 12


@dataclass(frozen=True, slots=True)
class Share:
    """The share of right answers to so many problems that were graded."""

    value: float
    interval: Interval
    problems: int


@dataclass(frozen=True, slots=True)
class SideFigures:
    """Means over the problems of a side. `accuracy` is None where none was graded, `seconds` where none were measured.

    `seconds` are the engine's.
    """

    problems: int
    accuracy: Share | None
    tokens_out: float
    tokens_in: float
    seconds: float | None


def side_figures(side: Side) -> SideFigures | None:
    """The figures of a side; None where no problem is finished."""
    problems = side.problems
    if not problems:
        return None
    seconds = fmean(problem.engine_seconds for problem in problems)
    return SideFigures(
        problems=len(problems),
        accuracy=_share(problems),
        tokens_out=fmean(problem.tokens_out for problem in problems),
        tokens_in=fmean(problem.tokens_in for problem in problems),
        seconds=seconds or None,
    )


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
        if 2 <= len(found) <= _MOST_GROUPS
    }


def group_share(side: Side, field: str, value: Any) -> Share | None:
    """The accuracy over the problems of a side whose records have this value in a field; None where none was graded."""
    return _share([problem for problem in side.problems if problem.rows[0].fields.get(field) == value])


def _share(problems: Sequence[Problem]) -> Share | None:
    shares = [share for problem in problems if (share := problem.correct) is not None]
    return Share(fmean(shares), share_interval(shares), len(shares)) if shares else None
