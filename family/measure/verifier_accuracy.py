"""The accuracy of the verifier's step scores against the exact checker, and their calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from family.measure.search_accuracy import SampledSolution, share, weighted, with_scores
from family.tasks.counting import Problem, judge, split_steps
from family.training.batches import completion_rows, pad_rows

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Steps whose score is in [low, low + 1/BINS): how many, their mean score, the share that is right."""

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
    steps = [
        (score, right)
        for problem, solutions, solution_scores in zip(problems, texts, scores, strict=True)
        for text, step_scores in zip(solutions, solution_scores, strict=True)
        for score, right in zip(step_scores, judge(problem, text).steps, strict=False)
    ]
    bins = []
    for index in range(BINS):
        inside = [(score, right) for score, right in steps if min(int(score * BINS), BINS - 1) == index]
        if inside:
            mean = sum(score for score, _ in inside) / len(inside)
            bins.append(Bin(index / BINS, len(inside), mean, share([right for _, right in inside])))
    return Judgement(
        accuracy=share([(score > 0.5) == right for score, right in steps]),
        accuracy_right=share([score > 0.5 for score, right in steps if right]),
        accuracy_wrong=share([score <= 0.5 for score, right in steps if not right]),
        steps=len(steps),
        error=sum(bin_.steps * abs(bin_.score - bin_.right) for bin_ in bins) / len(steps),
        bins=bins,
    )


def solver_accuracy(
    solver: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    samples: Sequence[Sequence[SampledSolution]],
) -> float:
    """The accuracy of weighted best-of-N where a solution's score is the solver's smallest token probability in it.

    This is the mark that a trained verifier is compared with: the solver knows nearly every step.
    """
    right = []
    for problem, solutions in zip(problems, samples, strict=True):
        scores = _smallest_probabilities(solver, tokenizer, problem, [solution.text for solution in solutions])
        (scored,) = with_scores([solutions], [scores])
        right.append(weighted(scored) == problem.answer)
    return share(right)


@torch.no_grad()
def _smallest_probabilities(
    solver: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problem: Problem, texts: Sequence[str]
) -> list[float]:
    batch = pad_rows(completion_rows(tokenizer, [(problem.text, "\n\n".join(split_steps(text))) for text in texts]), 0)
    logprobs = solver(input_ids=batch.ids, use_cache=False).logits.float().log_softmax(-1)
    counted = batch.targets >= 0
    target_logprobs = logprobs.gather(-1, batch.targets.clamp(min=0)[..., None])[..., 0].masked_fill(~counted, 0.0)
    smallest: list[float] = target_logprobs.min(-1).values.exp().tolist()
    return smallest
