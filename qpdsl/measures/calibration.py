"""Whether a score says how likely an answer is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BINS = 10


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of so many `answers` with a score. The smaller the first two, and the larger the third, the better.

    `expected_error`: how far scores lie from the shares of right answers, over ten equal bins of [0, 1], weighted by
    their answers (Guo et al., "On Calibration of Modern Neural Networks", 2017, section 2). `brier`: the mean square of
    score less right (Brier, 1950). Both are None where a score lies outside [0, 1]. `auroc`: the probability that a
    right answer has a better score than a wrong one, ties counting half; None where all are right, or all wrong.
    """

    answers: int
    expected_error: float | None
    brier: float | None
    auroc: float | None


def calibration(scores: Sequence[float], correct: Sequence[bool]) -> Calibration | None:
    """None where there is no score. Raises ValueError unless there are as many of both."""
    pairs = list(zip(scores, correct, strict=True))
    if not pairs:
        return None
    error = brier = None
    if all(0 <= score <= 1 for score, _ in pairs):
        error = _expected_error(pairs)
        brier = sum((score - right) ** 2 for score, right in pairs) / len(pairs)
    return Calibration(len(pairs), error, brier, _auroc(pairs))


def _expected_error(pairs: Sequence[tuple[float, bool]]) -> float:
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for score, right in pairs:
        bins[min(int(score * BINS), BINS - 1)].append((score, right))
    # The size of a bin cancels in its share of the sum.
    return sum(abs(sum(score - right for score, right in own)) for own in bins) / len(pairs)


def _auroc(pairs: Sequence[tuple[float, bool]]) -> float | None:
    right = sum(right for _, right in pairs)
    wrong = len(pairs) - right
    if not right or not wrong:
        return None
    ordered = sorted(pairs)
    ranks, start = 0.0, 0
    while start < len(ordered):
        end = start
        while end < len(ordered) and ordered[end][0] == ordered[start][0]:
            end += 1
        # Equal scores share their mean rank, counted from 1.
        ranks += (start + 1 + end) / 2 * sum(right for _, right in ordered[start:end])
        start = end
    return (ranks - right * (right + 1) / 2) / (right * wrong)
