"""A cascade: which way a problem is tried by first and what follows, and what it comes to where all ways were seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from qpdsl.budgets.observations import Floats, Observations
from qpdsl.planner.budget.budget_policy import Turn

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Cascade:
    """The table of a `BudgetPolicy`, by numbers of ways."""

    first: int
    turns: Mapping[int, Turn] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Replay:
    """What a cascade comes to, each [rows]: 1 for a right answer, what was spent, and the way that a row ended by.

    `reached` has, by the number of a way, which rows are tried by it.
    """

    correct: Floats
    spend: Floats
    last: Numbers
    reached: Mapping[int, Bools]


def replayed(cascade: Cascade, seen: Observations) -> Replay:
    """What a cascade would have come to on the rows of `seen`, whose ways it names."""
    rows = len(seen.problems)
    last = np.full(rows, cascade.first, dtype=np.int64)
    spend = seen.spend[:, cascade.first].copy()
    reached = {cascade.first: np.ones(rows, dtype=bool)}
    # A turn leads to later ways alone, so that one pass over them in order follows every row to its end.
    for own in range(len(seen.ways)):
        turn, here = cascade.turns.get(own), last == own
        if turn is None or not here.any():
            continue
        follows = following(turn, seen.support[:, own])
        for later in {way for way in turn.next if way is not None}:
            goes_on = here & (follows == later)
            spend[goes_on] += seen.further(own, later)[goes_on]
            last[goes_on] = later
            reached[later] = reached.get(later, False) | goes_on
    return Replay(seen.correct[np.arange(rows), last], spend, last, reached)


def following(turn: Turn, support: Floats) -> Numbers:
    """int64 [rows]: the way that follows at each support, -1 for the end; see `Turn.after`."""
    places = np.searchsorted(np.asarray(turn.cuts, dtype=np.float64), support, side="right")
    return np.array([-1 if way is None else way for way in turn.next], dtype=np.int64)[places]
