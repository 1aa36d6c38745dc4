"""What a learned cascade is expected to come to, on problems that it did not learn from."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean

from qpdsl.budgets.observations import Observations
from qpdsl.budgets.policy_learning import OverBudget, learned
from qpdsl.budgets.way_cascade import Cascade, replayed
from qpdsl.measures.statistics.intervals import Interval, bootstrap_interval, wilson

_FOLDS = 5


@dataclass(frozen=True, slots=True)
class Expected:
    """The share of right answers with its 95% interval, and the mean spend."""

    right: float
    between: Interval
    spend: float


def held_out(seen: Observations, budget: float) -> Expected:
    """Cross-validation in five folds: each problem is answered by the cascade that the other folds gave.

    All rows of a problem are in one fold. The interval is over problems: Wilson's, or a bootstrap's where problems were
    run several times. Raises ValueError for less than two problems.
    """
    names = seen.names
    if len(names) < 2:
        raise ValueError("what was learned from one problem cannot be tried on another")
    right, spent = defaultdict(list), defaultdict(list)
    for fold in range(min(_FOLDS, len(names))):
        own = {name for place, name in enumerate(names) if place % _FOLDS == fold}
        tried = seen.only(own)
        replay = replayed(_learned(seen.only(set(names) - own), budget), tried)
        for row, problem in enumerate(tried.problems):
            right[problem].append(float(replay.correct[row]))
            spent[problem].append(float(replay.spend[row]))
    rights = [fmean(right[name]) for name in names]
    # A bootstrap of problems that all agree would be certain.
    once = len(names) == len(seen.problems) or len(set(rights)) == 1
    between = wilson(round(sum(rights)), len(rights)) if once else bootstrap_interval(rights)
    return Expected(fmean(rights), between, fmean(fmean(spent[name]) for name in names))


def _learned(seen: Observations, budget: float) -> Cascade:
    try:
        return learned(seen, budget)
    except OverBudget as over:
        # A part of the problems can take more than all of them together.
        return Cascade(over.way)
