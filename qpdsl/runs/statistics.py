"""How sure a figure is, and whether two figures differ: intervals, paired tests, and both over several seeds.

Answers of several seeds to one problem are not independent, so it is problems that are counted and resampled (Miller,
"Adding Error Bars to Evals", 2024). All of it is deterministic: what draws at random draws by a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

import numpy as np

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
CONFIDENCE = 0.95
RESAMPLES = 4000
_SEED = 20240
# The most numbers that are drawn at once, which bounds the memory of a bootstrap.
AT_ONCE = 1 << 22
# With more values a mean is normal for all purposes, and resampling takes long.
MAX_RESAMPLED = 10_000

_SIGN_SEED = 20241
# Up to so many differences that are not zero, all signs are tried.
_ALL_SIGNS = 12
# Of up to so many problems a bootstrap makes the interval of a mean too narrow.
_FEW = 30
# A difference counts as one that would have been seen where so large a share of comparisons sees it.
POWER = 0.8


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`, both included."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def wilson(correct: int, total: int, confidence: float = CONFIDENCE) -> Interval:
    """The score interval of a share (Wilson, 1927): it keeps its confidence for few rows and for shares near 0 and 1.

    Raises ValueError unless 0 <= correct <= total and there is a row.
    """
    if not 0 <= correct <= total or not total:
        raise ValueError(f"{correct} of {total} is no share")
    z = quantile(confidence)
    share, weight = correct / total, z * z / total
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / total + weight / (4 * total))
    # At the ends rounding alone keeps the bound from the share itself.
    low = 0.0 if correct == 0 else max(middle - half, 0.0)
    return Interval(low, 1.0 if correct == total else min(middle + half, 1.0))


def bootstrap_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The percentile interval of a mean, by resampling the values (Efron, 1979); the normal one over 10,000 values.

    The values must be independent: where several belong to one problem, as those of several seeds do, give the mean of
    each problem (Miller, "Adding Error Bars to Evals", 2024, section 2.2). Raises ValueError where there is none.
    """
    if not len(values):
        raise ValueError("there is no mean of nothing")
    if len(values) > MAX_RESAMPLED:
        middle, half = float(np.mean(values)), quantile(confidence) * float(np.std(values)) / math.sqrt(len(values))
        return Interval(middle - half, middle + half)
    means = resampled_means(np.asarray(values, dtype=np.float64))
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))


def resampled_means(
    values: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """float64 [RESAMPLES]: means of as many values, drawn with replacement. The same for the same values."""
    random = np.random.Generator(np.random.Philox(_SEED))
    means = np.empty(RESAMPLES)
    block = max(AT_ONCE // len(values), 1)
    for start in range(0, RESAMPLES, block):
        count = min(block, RESAMPLES - start)
        means[start : start + count] = values[random.integers(0, len(values), (count, len(values)))].mean(axis=1)
    return means


def quantile(confidence: float) -> float:
    """How many standard deviations to each side of the mean have this share of a normal distribution."""
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence}")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values, in their order, each raised so that below a level all together err with that probability at most.

    Holm's step-down procedure (1979), which asks nothing of how the tests depend on each other.
    """
    raised = [0.0] * len(p_values)
    highest = 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(p_values[number] * (len(p_values) - rank), 1.0))
        raised[number] = highest
    return raised


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


def _binomial(throws: int, heads: int, share: float = 0.5) -> float:
    """The probability of so many heads, of a coin that shows them with the probability `share`, between 0 and 1."""
    ways = math.lgamma(throws + 1) - math.lgamma(heads + 1) - math.lgamma(throws - heads + 1)
    return math.exp(ways + heads * math.log(share) + (throws - heads) * math.log1p(-share))


def least_successes(total: int, share: float, delta: float) -> int | None:
    """The least number of `total` trials to succeed that shows that each does with a probability of `share`.

    The exact binomial test (Clopper and Pearson, 1934): with a lower probability so many, or more, succeed in a share
    `delta` of all cases at most. None where not even all are enough. `share` and `delta` lie between 0 and 1.
    """
    tail, least = 0.0, None
    for successes in range(total, -1, -1):
        tail += _binomial(total, successes, share)
        if tail > delta:
            break
        least = successes
    return least


def _sign_flips(differences: Floats) -> float:
    own = differences[differences != 0]
    if not len(own):
        return 1.0
    seen = abs(float(own.sum()))
    if len(own) > MAX_RESAMPLED:
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
    random = np.random.Generator(np.random.Philox(_SIGN_SEED))
    sums = np.empty(RESAMPLES)
    block = max(AT_ONCE // len(values), 1)
    for start in range(0, RESAMPLES, block):
        count = min(block, RESAMPLES - start)
        sums[start : start + count] = (1.0 - 2.0 * random.integers(0, 2, (count, len(values)))) @ values
    return sums


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


def share_right(verdicts: Sequence[bool | None]) -> float | None:
    """The share of the seeds that have a problem right; None where the answer of one could not be graded."""
    return None if None in verdicts else fmean(verdict is True for verdict in verdicts)


def share_interval(shares: Sequence[float]) -> Interval:
    """The 95% interval of an accuracy, from the share of right answers to each problem.

    Wilson's where every problem is right or wrong, else over problems: Student's for up to 30 of them, for which a
    bootstrap's is too narrow, and a bootstrap's for more. Raises ValueError without a share.
    """
    # Where all problems agree a bootstrap has nothing to resample, and would be certain.
    if set(shares) <= {0.0, 1.0} or len(set(shares)) == 1:
        return wilson(round(sum(shares)), len(shares))
    if len(shares) > _FEW:
        return bootstrap_interval(shares)
    middle = fmean(shares)
    half = _student(len(shares) - 1) * float(np.std(shares, ddof=1)) / math.sqrt(len(shares))
    return Interval(max(middle - half, 0.0), min(middle + half, 1.0))


def _student(freedom: int) -> float:
    """How many standard errors to each side of the mean hold it with 95%, by Student's distribution (1908).

    Found by halving an interval, as the distribution has a finite sum for whole degrees of freedom (Abramowitz and
    Stegun, 26.7.3 and 26.7.4).
    """
    low, high = 0.0, 1000.0
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < CONFIDENCE else (low, middle)
    return low


def _within(t: float, freedom: int) -> float:
    """The probability that Student's t lies within `t` of 0."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = found = math.cos(angle) if odd else 1.0
    for number in range(2 + odd, freedom - 1, 2):
        term *= (number - 1) / number * math.cos(angle) ** 2
        found += term
    if not odd:
        return math.sin(angle) * found
    return 2 / math.pi * (angle + (math.sin(angle) * found if freedom > 1 else 0.0))


def shares_compared(first: Sequence[float], second: Sequence[float], *, one_seed: bool) -> PairedResult:
    """Two sides over the same problems, by the share of right answers to each.

    `one_seed` says that each side has one answer to each problem: then McNemar's test, else a permutation test over
    problems. Raises ValueError unless there are as many of both, and some.
    """
    if one_seed:
        return paired_test([share == 1 for share in first], [share == 1 for share in second])
    return paired_values(first, second)


def on_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Whether each point of (cost, gain) is on the front: none has more gain at its cost or less, or its gain for less.

    Points that are equal are on it together.
    """
    order = sorted(range(len(points)), key=lambda number: (points[number][0], -points[number][1]))
    found = [False] * len(points)
    best: tuple[float, float] | None = None
    for number in order:
        cost, gain = points[number]
        if best is None or gain > best[1]:
            best = (cost, gain)
        found[number] = (cost, gain) == best
    return found
