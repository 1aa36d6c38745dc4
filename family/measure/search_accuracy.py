"""The accuracy of each search method on the held-out problems, and its cost in tokens.

Greedy decoding, sampling and beam search run through the engine, as any user's programs do. Self-consistency, best-of-N
and weighted best-of-N choose among the first N of the same samples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from family.measure.program_runs import pipeline, run_all, shipped
from family.tasks.counting import Problem
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.runs.row_outcome import Outcome

SAMPLES = 64
TEMPERATURE = 0.8
COUNTS = (1, 4, 16, 64)

_SAMPLING = (
    f"chat user=problem | generate llm n={SAMPLES} temperature={TEMPERATURE} max_tokens=256 "
    r"| extract answer = /The answer is (-?\d+)/"
)


@dataclass(frozen=True)
class SampledSolution:
    """One sampled solution: its text, its answer, its number of tokens, and the verifier's score of its last step."""

    text: str
    answer: str | None
    tokens: int
    score: float = 0.0


@dataclass(frozen=True)
class SearchOutcomes:
    """The samples that methods choose from, and the outcomes of the others: one entry for each problem."""

    problems: Sequence[Problem]
    samples: Sequence[Sequence[SampledSolution]]
    greedy: Sequence[Outcome]
    beam: Sequence[Outcome]


@dataclass(frozen=True)
class MethodAccuracy:
    """One method at one N: the share of problems right, in all and by level, and sampled tokens a problem."""

    method: str
    n: int
    right: float
    by_level: dict[int, float]
    tokens: float


def decode(generator: str, problems: Sequence[Problem]) -> tuple[list[list[SampledSolution]], list[Outcome]]:
    """`SAMPLES` unscored samples of each problem, and the outcomes of greedy decoding. `generator` is a model id."""
    models = {"llm": generator}
    greedy = _solve("greedy", shipped("greedy", models), problems)
    sampling = _solve("sampling", pipeline(_SAMPLING, models), problems)
    return [_samples(outcome) for outcome in sampling], greedy


def small_model(generator: str, mini: str, problems: Sequence[Problem]) -> list[MethodAccuracy]:
    """The small model alone, greedily, and the shipped filter decoding, where both write."""
    alone = _solve("the small model", shipped("greedy", {"llm": mini}), problems)
    filtered = _solve("filter decoding", shipped("filter_decoding", {"llm": generator, "slm": mini}), problems)
    return [
        _accuracy(name, 1, problems, [bool(outcome.correct) for outcome in outcomes], _tokens(outcomes))
        for name, outcomes in (("counting-mini, greedy", alone), ("filter decoding, threshold 0.9", filtered))
    ]


def beam_search(generator: str, verifier: str, problems: Sequence[Problem]) -> list[Outcome]:
    """The outcomes of the shipped beam search with these two models."""
    return _solve("beam search", shipped("beam_search", {"llm": generator, "prm": verifier}), problems)


def _solve(name: str, program: LogicalProgram, problems: Sequence[Problem]) -> list[Outcome]:
    rows = [{"problem": problem.text} for problem in problems]
    return run_all(name, program, rows, [problem.answer for problem in problems])


def with_scores(
    samples: Sequence[Sequence[SampledSolution]], scores: Sequence[Sequence[float]]
) -> list[list[SampledSolution]]:
    """The samples with their scores."""
    return [
        [replace(sample, score=score) for sample, score in zip(row, row_scores, strict=True)]
        for row, row_scores in zip(samples, scores, strict=True)
    ]


def _samples(outcome: Outcome) -> list[SampledSolution]:
    return [
        SampledSolution(str(row["text"]), _text_or_none(row["answer"]), int(row["tokens"] or 0))
        for row in outcome.rows or []
    ]


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def majority(samples: Sequence[SampledSolution]) -> str | None:
    """The answer stated most often, the first seen on a tie; None when no sample states one."""
    stated = [sample.answer for sample in samples if sample.answer is not None]
    return Counter(stated).most_common(1)[0][0] if stated else None


def best(samples: Sequence[SampledSolution]) -> str | None:
    """The answer of the sample with the best score, the first on a tie."""
    return max(samples, key=lambda sample: sample.score).answer


def weighted(samples: Sequence[SampledSolution]) -> str | None:
    """The answer with the largest sum of scores, the first seen on a tie."""
    sums: dict[str, float] = defaultdict(float)
    for sample in samples:
        if sample.answer is not None:
            sums[sample.answer] += sample.score
    return max(sums, key=lambda answer: sums[answer]) if sums else None


CHOICES: dict[str, Callable[[Sequence[SampledSolution]], str | None]] = {
    "self-consistency": majority,
    "best-of-N": best,
    "weighted best-of-N": weighted,
}


def method_accuracies(outcomes: SearchOutcomes) -> list[MethodAccuracy]:
    """Every method's accuracy and cost."""
    problems = outcomes.problems
    greedy = [bool(outcome.correct) for outcome in outcomes.greedy]
    accuracies = [_accuracy("greedy", 1, problems, greedy, _tokens(outcomes.greedy))]
    for n in COUNTS:
        first = [samples[:n] for samples in outcomes.samples]
        tokens = sum(sample.tokens for samples in first for sample in samples) / len(problems)
        for method, choose in CHOICES.items():
            right = [choose(samples) == problem.answer for samples, problem in zip(first, problems, strict=True)]
            accuracies.append(_accuracy(method, n, problems, right, tokens))
        right = [
            any(sample.answer == problem.answer for sample in samples)
            for samples, problem in zip(first, problems, strict=True)
        ]
        accuracies.append(_accuracy("pass@N", n, problems, right, tokens))
    beam = [bool(outcome.correct) for outcome in outcomes.beam]
    accuracies.append(_accuracy("beam search, width 4, expand 4", 16, problems, beam, _tokens(outcomes.beam)))
    return accuracies


def _tokens(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.tokens_out for outcome in outcomes) / len(outcomes)


def _accuracy(method: str, n: int, problems: Sequence[Problem], right: Sequence[bool], tokens: float) -> MethodAccuracy:
    levels = sorted({problem.level for problem in problems})
    by_level = {
        level: share([flag for flag, problem in zip(right, problems, strict=True) if problem.level == level])
        for level in levels
    }
    return MethodAccuracy(method, n, share(right), by_level, tokens)


def share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0
