"""How small a difference a comparison would have shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from qpdsl.measures.statistics.intervals import CONFIDENCE, quantile

# A difference counts as one that would have been seen where so large a share of comparisons sees it.
POWER = 0.8


def detectable_difference(differences: Sequence[float], confidence: float = CONFIDENCE, power: float = POWER) -> float:
    """The least difference of means that a paired comparison finds significant in `power` of all cases.

    `differences` are those of its problems, of shares in [0, 1]. All of them are taken for chance, and the effect for
    problems that go from wrong to right. With the sum c of their squares, and k the square of the sum of two normal
    quantiles, it takes d such problems, where d^2 = k (c + d) (Miettinen, 1968): d = k = 7.8 where nothing else
    changes. Raises ValueError where there is no problem.
    """
    if not len(differences):
        raise ValueError("there is no difference of nothing")
    chance = math.fsum(difference * difference for difference in differences)
    k = (quantile(confidence) + NormalDist().inv_cdf(power)) ** 2
    problems = (k + math.sqrt(k * k + 4 * k * chance)) / 2
    return min(problems / len(differences), 1.0)
