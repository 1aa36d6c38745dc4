"""Confidence intervals of shares and of means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
CONFIDENCE = 0.95
RESAMPLES = 4000
_SEED = 20240
# The most numbers that are drawn at once, which bounds the memory of a bootstrap.
AT_ONCE = 1 << 22
# With more values a mean is normal for all purposes, and resampling takes long.
MOST_RESAMPLED = 10_000


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
    if len(values) > MOST_RESAMPLED:
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
