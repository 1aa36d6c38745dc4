"""Problems that several seeds have answered: the share of the seeds that got each right is one observation.

Answers of several seeds to one problem are not independent, so it is problems that are counted and resampled (Miller,
"Adding Error Bars to Evals", 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from qpdsl.measures.statistics.intervals import Interval, bootstrap_interval, wilson
from qpdsl.measures.statistics.paired_tests import PairedResult, paired_test, paired_values


def share_right(verdicts: Sequence[bool | None]) -> float | None:
    """The share of the seeds that have a problem right; None where the answer of one could not be graded."""
    return None if None in verdicts else fmean(verdict is True for verdict in verdicts)


def share_interval(shares: Sequence[float]) -> Interval:
    """The 95% interval of an accuracy, from the share of right answers to each problem.

    Wilson's where every problem is right or wrong, else a bootstrap's over problems. Raises ValueError without a share.
    """
    # Where all problems agree a bootstrap has nothing to resample, and would be certain.
    if set(shares) <= {0.0, 1.0} or len(set(shares)) == 1:
        return wilson(round(sum(shares)), len(shares))
    return bootstrap_interval(shares)


def shares_compared(first: Sequence[float], second: Sequence[float], *, one_seed: bool) -> PairedResult:
    """Two sides over the same problems, by the share of right answers to each.

    `one_seed` says that each side has one answer to each problem: then McNemar's test, else a permutation test over
    problems. Raises ValueError unless there are as many of both, and some.
    """
    if one_seed:
        return paired_test([share == 1 for share in first], [share == 1 for share in second])
    return paired_values(first, second)
