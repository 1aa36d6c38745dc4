"""How often each way of spending samples is right, and what it costs, on the held-out problems.

Greedy decoding, sampling and beam search run through the engine, as any user's programs do. Self-consistency, best-of-N
and weighted best-of-N choose among the first N of the same samples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from qpdsl.dataset.outcome import Outcome
from qpdsl.family.measure.programs import pipeline, run_all, shipped
from qpdsl.family.tasks.counting import Problem
from qpdsl.planner.plan.logical import LogicalProgram

SAMPLES = 64
TEMPERATURE = 0.8
COUNTS = (1, 4, 16, 64)

_SAMPLING = (
    f"chat user=problem | generate llm n={SAMPLES} temperature={TEMPERATURE} max_tokens=256 "
    r"| extract answer = /The answer is (-?\d+)/"
)


@dataclass(frozen=True)
class Sampled:
    """One sampled solution of a problem: what it says, its tokens, and how the verifier likes its last step."""

    text: str
    answer: str | None
    tokens: int
    score: float = 0.0


@dataclass(frozen=True)
class Searched:
    """Everything that the methods chose from or came to, one entry a problem."""

    problems: Sequence[Problem]
    samples: Sequence[Sequence[Sampled]]
    greedy: Sequence[Outcome]
    beam: Sequence[Outcome]


@dataclass(frozen=True)
class Line:
    """One method at one N: the share of problems right, in all and by level, and sampled tokens a problem."""

    method: str
    n: int
    right: float
    by_level: dict[int, float]
    tokens: float


def decode(generator: str, problems: Sequence[Problem]) -> tuple[list[list[Sampled]], list[Outcome]]:
    """`SAMPLES` samples of each problem, not scored yet, and what greedy decoding gives; `generator` is a model id."""
    models = {"llm": generator}
    greedy = _solve("greedy", shipped("greedy", models), problems)
    sampled = _solve("sampling", pipeline(_SAMPLING, models), problems)
    return [_samples(outcome) for outcome in sampled], greedy


def beam_search(generator: str, verifier: str, problems: Sequence[Problem]) -> list[Outcome]:
    """What the shipped beam search gives with these two models."""
    return _solve("beam search", shipped("beam_search", {"llm": generator, "prm": verifier}), problems)


def _solve(name: str, program: LogicalProgram, problems: Sequence[Problem]) -> list[Outcome]:
    rows = [{"problem": problem.text} for problem in problems]
    return run_all(name, program, rows, [problem.answer for problem in problems])


def scored(samples: Sequence[Sequence[Sampled]], scores: Sequence[Sequence[float]]) -> list[list[Sampled]]:
    """The samples with their scores."""
    return [
        [replace(sample, score=score) for sample, score in zip(some, own, strict=True)]
        for some, own in zip(samples, scores, strict=True)
    ]


def _samples(outcome: Outcome) -> list[Sampled]:
    return [Sampled(str(row["text"]), _said(row["answer"]), int(row["tokens"] or 0)) for row in outcome.rows or []]


def _said(value: object) -> str | None:
    return None if value is None else str(value)


def majority(samples: Sequence[Sampled]) -> str | None:
    """The answer stated most often, the first seen on a tie; None when no sample states one."""
    stated = [sample.answer for sample in samples if sample.answer is not None]
    return Counter(stated).most_common(1)[0][0] if stated else None


def best(samples: Sequence[Sampled]) -> str | None:
    """The answer of the sample whose last step the verifier likes best, the first on a tie."""
    return max(samples, key=lambda sample: sample.score).answer


def weighted(samples: Sequence[Sampled]) -> str | None:
    """The answer with the largest sum of scores, the first seen on a tie."""
    sums: dict[str, float] = defaultdict(float)
    for sample in samples:
        if sample.answer is not None:
            sums[sample.answer] += sample.score
    return max(sums, key=lambda answer: sums[answer]) if sums else None


CHOICES: dict[str, Callable[[Sequence[Sampled]], str | None]] = {
    "self-consistency": majority,
    "best-of-N": best,
    "weighted best-of-N": weighted,
}


def lines(searched: Searched) -> list[Line]:
    """Every method's accuracy and cost."""
    problems = searched.problems
    found = [_line("greedy", 1, problems, [bool(o.correct) for o in searched.greedy], _tokens(searched.greedy))]
    for n in COUNTS:
        first = [samples[:n] for samples in searched.samples]
        tokens = sum(sample.tokens for samples in first for sample in samples) / len(problems)
        for method, choose in CHOICES.items():
            right = [choose(some) == problem.answer for some, problem in zip(first, problems, strict=True)]
            found.append(_line(method, n, problems, right, tokens))
        right = [any(s.answer == problem.answer for s in some) for some, problem in zip(first, problems, strict=True)]
        found.append(_line("pass@N", n, problems, right, tokens))
    beam = [bool(outcome.correct) for outcome in searched.beam]
    found.append(_line("beam search, width 4, expand 4", 16, problems, beam, _tokens(searched.beam)))
    return found


def _tokens(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.tokens_out for outcome in outcomes) / len(outcomes)


def _line(method: str, n: int, problems: Sequence[Problem], right: Sequence[bool], tokens: float) -> Line:
    levels = sorted({problem.level for problem in problems})
    by_level = {
        level: share([flag for flag, problem in zip(right, problems, strict=True) if problem.level == level])
        for level in levels
    }
    return Line(method, n, share(right), by_level, tokens)


def share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0
