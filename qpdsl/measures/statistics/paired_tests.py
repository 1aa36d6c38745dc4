"""Whether two runs over the same problems differ.

Problems differ in difficulty far more than runs do, so that two runs are compared problem by problem. With common
random numbers, under which both draw by the same noise, still fewer differences are due to chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qpdsl.measures.statistics.intervals import (
    AT_ONCE,
    CONFIDENCE,
    MOST_RESAMPLED,
    RESAMPLES,
    Floats,
    Interval,
    bootstrap_interval,
    quantile,
)

_SEED = 20241
# Up to so many differences that are not zero, all signs are tried.
_ALL_SIGNS = 12


@dataclass(frozen=True, slots=True)
class PairedResult:
    """`difference` is that of the means, the second less the first. `p_value` is two-sided.

    `gained` problems are better in the second, `lost` worse, of `pairs`.
    """

    difference: float
    interval: Interval
    p_value: float
    gained: int
    lost: int
    pairs: int

    def is_significant(self, level: float = 1 - CONFIDENCE) -> bool:
        return self.p_value < level


def paired_test(first: Sequence[bool], second: Sequence[bool], confidence: float = CONFIDENCE) -> PairedResult:
    """Compares right and wrong answers to the same problems by McNemar's test in its exact form (McNemar, 1947).

    Only problems that one of the two has right tell anything: without a difference either is as likely. The interval
    is that of Agresti and Min (2005, section 2.2), which adds half an observation to each kind of pair. Raises
    ValueError unless there are as many of both, and some.
    """
    _check(first, second)
    gained = sum(b and not a for a, b in zip(first, second, strict=True))
    lost = sum(a and not b for a, b in zip(first, second, strict=True))
    pairs = len(first)
    total, discordant, difference = pairs + 2, gained + lost + 1, gained - lost
    middle = difference / total
    half = quantile(confidence) * math.sqrt(max(discordant - difference**2 / total, 0.0)) / total
    interval = Interval(max(middle - half, -1.0), min(middle + half, 1.0))
    return PairedResult(difference / pairs, interval, _two_sided(gained, lost), gained, lost, pairs)


def paired_values(first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE) -> PairedResult:
    """Compares figures of the same problems, such as tokens, or shares of right answers over several seeds.

    The p-value is that of the permutation test which gives every difference either sign (Fisher, 1935, section 21):
    all of them up to 12 differences, else 4,000 drawn ones, and over 10,000 the normal distribution that these come to.
    The interval is a bootstrap's. Raises ValueError unless there are as many of both, and some.
    """
    _check(first, second)
    differences = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    gained, lost = int((differences > 0).sum()), int((differences < 0).sum())
    interval = bootstrap_interval(differences.tolist(), confidence)
    mean = float(differences.mean())
    return PairedResult(mean, interval, _sign_flips(differences), gained, lost, len(differences))


def _check(first: Sequence[object], second: Sequence[object]) -> None:
    if len(first) != len(second) or not len(first):
        raise ValueError(f"{len(first)} and {len(second)} values make no pairs")


def _two_sided(gained: int, lost: int) -> float:
    """The probability, of as many throws of a coin, of a result at least as uneven as this one."""
    throws, fewer = gained + lost, min(gained, lost)
    if gained == lost:
        return 1.0
    tail = sum(_binomial(throws, heads) for heads in range(fewer + 1))
    return min(2 * tail, 1.0)


def _binomial(throws: int, heads: int) -> float:
    """The probability of so many heads."""
    ways = math.lgamma(throws + 1) - math.lgamma(heads + 1) - math.lgamma(throws - heads + 1)
    return math.exp(ways - throws * math.log(2))


def _sign_flips(differences: Floats) -> float:
    own = differences[differences != 0]
    if not len(own):
        return 1.0
    seen = abs(float(own.sum()))
    if len(own) > MOST_RESAMPLED:
        return math.erfc(seen / math.sqrt(2 * float(own @ own)))
    if len(own) <= _ALL_SIGNS:
        numbers = np.arange(1 << len(own))[:, None]
        sums, extra = np.abs((1.0 - 2.0 * ((numbers >> np.arange(len(own))) & 1)) @ own), 0
    else:
        # What was seen is one of the permutations, so that no p-value is 0.
        sums, extra = np.abs(_drawn_sums(own)), 1
    # Sums that are equal but for rounding count as equal.
    as_uneven = int((sums >= seen - 1e-9 * max(np.abs(own).sum(), 1e-300)).sum())
    return (as_uneven + extra) / (len(sums) + extra)


def _drawn_sums(values: Floats) -> Floats:
    """float64 [RESAMPLES]: sums of the values with signs drawn at random. The same for the same values."""
    random = np.random.Generator(np.random.Philox(_SEED))
    sums = np.empty(RESAMPLES)
    block = max(AT_ONCE // len(values), 1)
    for start in range(0, RESAMPLES, block):
        count = min(block, RESAMPLES - start)
        sums[start : start + count] = (1.0 - 2.0 * random.integers(0, 2, (count, len(values)))) @ values
    return sums
