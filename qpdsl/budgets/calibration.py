"""The cheapest policy that is shown to have a share of the problems right (learn then test).

Angelopoulos et al. ("Learn then Test", arXiv 2110.01052), with their fixed-sequence testing: policies from the most
right to the cheapest are learned on one part of the problems, and tried in that order on the other, each by an exact
binomial test, until one fails. The last that passed has the share of right answers with probability 1 - delta, whatever
the part was that they were learned from. The order must not depend on the part of the tests, and no second test may be
made there: to take the cheapest policy that looks good misses its target about every second time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from qpdsl.budgets.observations import Observations
from qpdsl.budgets.policy_learning import Cascade, cheaper_and_cheaper, replayed
from qpdsl.planner.plan.budget_policy import Promise
from qpdsl.runs.statistics import least_successes


@dataclass(frozen=True)
class CertifiedPolicy:
    """The policy to run, and what its test came to: the first policy of all where none passed."""

    cascade: Cascade
    promise: Promise


def calibrated(seen: Observations, accuracy: float, delta: float) -> CertifiedPolicy:
    """The cheapest policy that is shown to have a share `accuracy` right, but for a probability of `delta`.

    The same for the same observations, which have a problem in each of their halves (see `halves`).
    """
    own, other = halves(seen)
    return last_passing(cheaper_and_cheaper(own), other, accuracy, delta, len(own.names))


def last_passing(
    policies: Iterable[Cascade], other: Observations, accuracy: float, delta: float, learned: int
) -> CertifiedPolicy:
    """The last of the policies that passes, tested one after another on problems that none was learned from.

    `learned` is how many problems they were learned from.
    """
    trials = once(other)
    count = len(trials.problems)
    needed = least_successes(count, accuracy, delta)
    last: CertifiedPolicy | None = None
    for cascade in policies:
        replay = replayed(cascade, trials)
        right, spent = int(replay.correct.sum()), float(replay.spend.mean())
        kept = needed is not None and right >= needed
        if kept or last is None:
            last = CertifiedPolicy(cascade, Promise(accuracy, delta, right, count, needed, learned, spent, kept))
        if not kept:
            break
    if last is None:
        raise ValueError("there is no policy to test")
    return last


def halves(seen: Observations) -> tuple[Observations, Observations]:
    """The rows to learn from and those to test on. A hash of the problem decides, so it stays in its part."""
    own = {name for name in seen.names if blake2b(name.encode(), digest_size=1).digest()[0] % 2 == 0}
    return seen.only(own), seen.only({*seen.names} - own)


def once(seen: Observations) -> Observations:
    """The first row of each problem: several seeds of one would not be independent."""
    _, first = np.unique(np.array(seen.problems), return_index=True)
    return seen.rows(np.sort(first))
