"""How well the verifier judges steps, and how its scores are calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from qpdsl.family.measure.search import Sampled, scored, share, weighted
from qpdsl.family.tasks.counting import Problem, judge, split_steps
from qpdsl.family.training.batches import completion_rows, pad_rows

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Steps whose score lies in [low, low + 1/BINS): how many, their mean score, the share that is right."""

    low: float
    steps: int
    score: float
    right: float


@dataclass(frozen=True)
class Judgement:
    """Step accuracy at a threshold of one half, in all and by what the checker says; the calibration of the scores.

    `error` is the expected calibration error: the mean distance of score and share right over the bins, by steps.
    """

    accuracy: float
    accuracy_right: float
    accuracy_wrong: float
    steps: int
    error: float
    bins: list[Bin]


def judgement(
    problems: Sequence[Problem], texts: Sequence[Sequence[str]], scores: Sequence[Sequence[Sequence[float]]]
) -> Judgement:
    """Hold `scores[i][j]`, of the steps of `texts[i][j]`, a solution of `problems[i]`, against the checker."""
    judged = [
        (mark, flag)
        for problem, some, own in zip(problems, texts, scores, strict=True)
        for text, marks in zip(some, own, strict=True)
        for mark, flag in zip(marks, judge(problem, text).steps, strict=False)
    ]
    bins = []
    for index in range(BINS):
        inside = [(mark, flag) for mark, flag in judged if min(int(mark * BINS), BINS - 1) == index]
        if inside:
            mean = sum(mark for mark, _ in inside) / len(inside)
            bins.append(Bin(index / BINS, len(inside), mean, share([flag for _, flag in inside])))
    return Judgement(
        accuracy=share([(mark > 0.5) == flag for mark, flag in judged]),
        accuracy_right=share([mark > 0.5 for mark, flag in judged if flag]),
        accuracy_wrong=share([mark <= 0.5 for mark, flag in judged if not flag]),
        steps=len(judged),
        error=sum(found.steps * abs(found.score - found.right) for found in bins) / len(judged),
        bins=bins,
    )


def mark(
    solver: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    samples: Sequence[Sequence[Sampled]],
) -> float:
    """What weighted best-of-N comes to when a solution's score is the solver's smallest token probability in it.

    The mark that a trained verifier is held against: the solver knows nearly every step.
    """
    right = []
    for problem, some in zip(problems, samples, strict=True):
        scores = _smallest_probabilities(solver, tokenizer, problem, [sample.text for sample in some])
        (liked,) = scored([some], [scores])
        right.append(weighted(liked) == problem.answer)
    return share(right)


@torch.no_grad()
def _smallest_probabilities(
    solver: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problem: Problem, texts: Sequence[str]
) -> list[float]:
    batch = pad_rows(completion_rows(tokenizer, [(problem.text, "\n\n".join(split_steps(t))) for t in texts]), 0)
    logprobs = solver(input_ids=batch.ids, use_cache=False).logits.float().log_softmax(-1)
    counted = batch.targets >= 0
    chosen = logprobs.gather(-1, batch.targets.clamp(min=0)[..., None])[..., 0].masked_fill(~counted, 0.0)
    smallest: list[float] = chosen.min(-1).values.exp().tolist()
    return smallest
