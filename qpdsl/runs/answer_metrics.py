"""What graded answers come to, as figures, text and JSON: accuracy, at every number of samples, and by scores.

One run of n samples a problem gives the figures of all smaller k: estimates for fresh samples, of `estimators.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from qpdsl.planner.values.value import dumps
from qpdsl.runs.estimators import best_at, consensus_at, pass_all, pass_at, weighted_at
from qpdsl.runs.statistics import Interval, share_interval, wilson

if TYPE_CHECKING:
    from qpdsl.runs.row_outcome import Outcome

BINS = 10

_COLUMN_WIDTH = 8


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


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """One sample: what identifies its answer (None where it has none), whether that is right, the verifier's score."""

    answer: Hashable
    correct: bool
    score: float | None = None


@dataclass(frozen=True, slots=True)
class ChoiceAccuracy:
    """The share of right answers of one metric at `k` samples a problem, its interval over problems at 95%."""

    metric: str
    k: int
    accuracy: float
    interval: Interval


def _average(samples: Sequence[SampledAnswer], k: int) -> float:
    """avg@k: the share of right samples, whatever k is."""
    return sum(sample.correct for sample in samples) / len(samples)


def _passed(samples: Sequence[SampledAnswer], k: int) -> float:
    return pass_at(len(samples), sum(sample.correct for sample in samples), k)


def _all_passed(samples: Sequence[SampledAnswer], k: int) -> float:
    return pass_all(len(samples), sum(sample.correct for sample in samples), k)


def _consensus(samples: Sequence[SampledAnswer], k: int) -> float:
    return consensus_at([sample.answer for sample in samples], [sample.correct for sample in samples], k)


def _best(samples: Sequence[SampledAnswer], k: int) -> float:
    return best_at([sample.score for sample in samples], [sample.correct for sample in samples], k)


def _weighted(samples: Sequence[SampledAnswer], k: int) -> float:
    answers, scores = [sample.answer for sample in samples], [sample.score for sample in samples]
    return weighted_at(answers, scores, [sample.correct for sample in samples], k)


# What k samples come to, by the names in use before `@k` and, of `pass^k`, `k`; those of `_SCORED` go by scores.
_METRICS: Mapping[str, Callable[[Sequence[SampledAnswer], int], float]] = {
    "avg": _average,
    "pass": _passed,
    "pass^": _all_passed,
    "cons": _consensus,
    "best": _best,
    "weighted": _weighted,
}
_SCORED = ("best", "weighted")


def accuracies_at_k(outcomes: Iterable[Outcome], seeds: int = 1) -> list[ChoiceAccuracy]:
    """What fewer samples of graded rows would have come to; `seeds` rows of a problem lie side by side."""
    known = [outcome.candidates or () for outcome in outcomes if is_at_k(outcome)]
    return accuracies([sampled_answers(candidates) for candidates in known], seeds)


def is_at_k(outcome: Outcome) -> bool:
    """Whether it is known what fewer samples of a graded row would have come to; one that failed is wrong anyway."""
    return outcome.correct is not None and (outcome.candidates is not None or outcome.failure is not None)


def accuracies(problems: Sequence[Sequence[SampledAnswer]], seeds: int = 1) -> list[ChoiceAccuracy]:
    """Every metric at powers of two up to the fewest samples of a problem, and at that number itself.

    Where a problem was run under several `seeds`, which lie side by side, its share is the mean over these.
    Without scores there is no best@k, and no weighted@k, which is left out too where a score can be no weight of a
    `vote`, as it is below 0. A problem without samples is wrong; the largest k is the number of samples that all others
    have. Empty where none has any.
    """
    most = min(filter(None, map(len, problems)), default=0)
    scores = [sample.score for samples in problems for sample in samples if sample.score is not None]
    missing = set(_SCORED) if not scores else {"weighted"} if min(scores) < 0 else set()
    return [
        _accuracy(name, k, _by_problem([measured(samples, k) if samples else 0.0 for samples in problems], seeds))
        for k in _numbers(most)
        for name, measured in _METRICS.items()
        if name not in missing
    ]


def sampled_answers(candidates: Iterable[Mapping[str, Any]]) -> list[SampledAnswer]:
    """Those of an `Outcome`'s candidates; one that is not graded counts as wrong.

    Answers are one where the program's own vote takes them for one, else where their JSON is equal.
    """
    return [
        SampledAnswer(_answer(candidate), candidate["correct"] is True, candidate.get("score"))
        for candidate in candidates
    ]


def _answer(candidate: Mapping[str, Any]) -> Hashable:
    if candidate["answer"] is None:
        return None
    ballot: int | None = candidate.get("ballot")
    return dumps(candidate["answer"]) if ballot is None else ballot


def _numbers(most: int) -> list[int]:
    powers = [1 << place for place in range(most.bit_length()) if 1 << place <= most]
    return powers if not powers or powers[-1] == most else [*powers, most]


def _by_problem(shares: Sequence[float], seeds: int) -> list[float]:
    return [fmean(shares[at : at + seeds]) for at in range(0, len(shares), seeds)]


def _accuracy(metric: str, k: int, shares: Sequence[float]) -> ChoiceAccuracy:
    return ChoiceAccuracy(metric, k, sum(shares) / len(shares), share_interval(shares))


def share_words(correct: int, total: int) -> str:
    """`367/500 (73.4%, 69.4% to 77.1%)`: the interval is Wilson's at 95%."""
    interval = wilson(correct, total)
    return f"{correct}/{total} ({correct / total:.1%}, {interval.low:.1%} to {interval.high:.1%})"


def share_json(correct: int, total: int) -> dict[str, Any]:
    """The same for programs; the keys are stable."""
    interval = wilson(correct, total)
    return {
        "correct": correct,
        "compared": total,
        "accuracy": round(correct / total, 5),
        "interval": [round(interval.low, 5), round(interval.high, 5)],
    }


def choice_facts(accuracies: Sequence[ChoiceAccuracy]) -> list[tuple[str, str]]:
    """A line for each metric, with a column for each number of samples."""
    if not accuracies:
        return []
    numbers = list(dict.fromkeys(own.k for own in accuracies))
    by_name: dict[str, dict[int, float]] = {}
    for own in accuracies:
        by_name.setdefault(own.metric, {})[own.k] = own.accuracy
    lines = [("k", "".join(f"{k:<{_COLUMN_WIDTH}}" for k in numbers).rstrip())]
    for name, shares in by_name.items():
        lines.append((metric_label(name), "".join(f"{shares[k]:<{_COLUMN_WIDTH}.1%}" for k in numbers).rstrip()))
    return lines


def metric_label(metric: str) -> str:
    """What a metric at k samples is called, such as `pass@k`."""
    return f"{metric}k" if metric.endswith("^") else f"{metric}@k"


def choice_json(accuracies: Sequence[ChoiceAccuracy]) -> dict[str, Any]:
    """By metric and number of samples: the share, and its interval."""
    found: dict[str, dict[str, Any]] = {}
    for own in accuracies:
        interval = [round(own.interval.low, 5), round(own.interval.high, 5)]
        found.setdefault(own.metric, {})[str(own.k)] = {"accuracy": round(own.accuracy, 5), "interval": interval}
    return found


def calibration_words(found: Calibration) -> str:
    """`AUROC 0.981, expected error 0.034, Brier 0.061 (500 answers)`."""
    figures = {"AUROC": found.auroc, "expected error": found.expected_error, "Brier": found.brier}
    words = ", ".join(f"{name} {value:.3f}" for name, value in figures.items() if value is not None)
    return f"{words or 'nothing can be told'} ({found.answers} answers)"


def calibration_json(found: Calibration) -> Mapping[str, Any]:
    figures = {"auroc": found.auroc, "expected_error": found.expected_error, "brier": found.brier}
    return {"answers": found.answers} | {
        name: None if value is None else round(value, 5) for name, value in figures.items()
    }
