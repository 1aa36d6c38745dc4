"""What a run's samples say at every number of them: pass@k, and what each way to choose among k comes to.

One run of n samples a problem gives the figures of all smaller k. They are estimates for fresh samples: pass@k is
unbiased over all sets of k of the n, and a choice is averaged over the n // k sets of k that follow one another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qpdsl.measures.statistics.intervals import Interval, bootstrap_interval
from qpdsl.planner.values.json_values import dumps


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """One sample: what identifies its answer (None where it has none), whether that is right, the verifier's score."""

    answer: str | None
    correct: bool
    score: float | None = None


@dataclass(frozen=True, slots=True)
class ChoiceAccuracy:
    """The share of right answers of one metric at `k` samples a problem, its interval over problems at 95%."""

    metric: str
    k: int
    accuracy: float
    interval: Interval


def pass_at(n: int, correct: int, k: int) -> float:
    """The probability that one of k samples is right, of n samples of which so many are.

    Unbiased: 1 - C(n - c, k) / C(n, k) (Chen et al., "Evaluating Large Language Models Trained on Code", 2021, section
    2.1). Raises ValueError unless 1 <= k <= n and 0 <= correct <= n.
    """
    if not 1 <= k <= n or not 0 <= correct <= n:
        raise ValueError(f"no {k} of {n} samples of which {correct} are right")
    missed = 1.0
    for number in range(n - correct + 1, n + 1):
        missed *= max(1 - k / number, 0.0)
    return 1 - missed


def majority(samples: Sequence[SampledAnswer]) -> bool:
    """Whether the answer that most samples have is right; the one seen first on a tie, as `vote` does."""
    return _winner(samples, lambda sample: 1.0)


def weighted(samples: Sequence[SampledAnswer]) -> bool:
    """Whether the answer with the largest sum of scores is right."""
    return _winner(samples, lambda sample: 0.0 if sample.score is None else sample.score)


def best(samples: Sequence[SampledAnswer]) -> bool:
    """Whether the answer of the sample with the best score is right; the first on a tie, one without a score last."""
    return max(samples, key=lambda sample: float("-inf") if sample.score is None else sample.score).correct


def _winner(samples: Sequence[SampledAnswer], weight: Callable[[SampledAnswer], float]) -> bool:
    totals: dict[str, float] = defaultdict(float)
    correct: dict[str, bool] = {}
    for sample in samples:
        if sample.answer is not None:
            totals[sample.answer] += weight(sample)
            correct.setdefault(sample.answer, sample.correct)
    # Rounding must not tell equal totals apart.
    return correct[max(totals, key=lambda answer: round(totals[answer], 5))] if totals else False


CHOICES: Mapping[str, Callable[[Sequence[SampledAnswer]], bool]] = {"maj": majority, "best": best, "weighted": weighted}


def accuracies(problems: Sequence[Sequence[SampledAnswer]]) -> list[ChoiceAccuracy]:
    """pass@k, maj@k and, where samples have scores, best@k and weighted@k, at powers of two up to the fewest samples.

    The largest k is the number of samples that all problems have. Empty where a problem has none.
    """
    most = min(map(len, problems), default=0)
    scored = any(sample.score is not None for samples in problems for sample in samples)
    names = ["maj", *(("best", "weighted") if scored else ())]
    found = []
    for k in _numbers(most):
        passed = [pass_at(len(samples), sum(sample.correct for sample in samples), k) for samples in problems]
        found.append(_accuracy("pass", k, passed))
        found += [_accuracy(name, k, [_over_sets(samples, k, CHOICES[name]) for samples in problems]) for name in names]
    return found


def sampled_answers(candidates: Iterable[Mapping[str, Any]]) -> list[SampledAnswer]:
    """Those of an `Outcome`'s candidates; one that is not graded counts as wrong."""
    return [
        SampledAnswer(
            None if candidate["answer"] is None else dumps(candidate["answer"]),
            candidate["correct"] is True,
            candidate["score"],
        )
        for candidate in candidates
    ]


def _numbers(most: int) -> list[int]:
    powers = [1 << place for place in range(most.bit_length()) if 1 << place <= most]
    return powers if not powers or powers[-1] == most else [*powers, most]


def _over_sets(samples: Sequence[SampledAnswer], k: int, choose: Callable[[Sequence[SampledAnswer]], bool]) -> float:
    starts = range(0, len(samples) - k + 1, k)
    return sum(choose(samples[start : start + k]) for start in starts) / len(starts)


def _accuracy(metric: str, k: int, shares: Sequence[float]) -> ChoiceAccuracy:
    return ChoiceAccuracy(metric, k, sum(shares) / len(shares), bootstrap_interval(shares))
