"""Measure a model on the held-out evaluation set and write its card from the numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from qpdsl.zoo.sampling import solve, step_scores
from qpdsl.zoo.task import Problem, evaluation_problems, extract_answer, judge

SAMPLES = 16
TEMPERATURE = 0.8


@dataclass(frozen=True)
class Sampled:
    """`texts[i]` are `SAMPLES` solutions of `problems[i]`, sampled at `TEMPERATURE`."""

    problems: list[Problem]
    texts: list[list[str]]


def sample_evaluation_set(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int = 500, seed: int = 0
) -> Sampled:
    torch.manual_seed(seed)
    chosen = evaluation_problems()[:count]
    repeated = [problem.text for problem in chosen for _ in range(SAMPLES)]
    texts = solve(model, tokenizer, repeated, temperature=TEMPERATURE)
    return Sampled(chosen, [texts[start : start + SAMPLES] for start in range(0, len(texts), SAMPLES)])


def majority(texts: Sequence[str]) -> str | None:
    """The answer stated most often, the first seen on a tie; None when no text states one."""
    stated = [answer for text in texts if (answer := extract_answer(text)) is not None]
    return Counter(stated).most_common(1)[0][0] if stated else None


def weighted(texts: Sequence[str], scores: Sequence[float]) -> str | None:
    """The answer with the largest sum of scores, the first seen on a tie."""
    sums: dict[str, float] = defaultdict(float)
    for text, score in zip(texts, scores, strict=True):
        answer = extract_answer(text)
        if answer is not None:
            sums[answer] += score
    return max(sums, key=lambda answer: sums[answer]) if sums else None


def share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)


def generator_numbers(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, sampled: Sampled
) -> dict[str, float]:
    """Shares of evaluation problems answered right, by the way the answer is chosen."""
    chosen = sampled.problems
    greedy = solve(model, tokenizer, [problem.text for problem in chosen])
    right = [judge(problem, text).right for problem, text in zip(chosen, greedy, strict=True)]
    each = [[judge(p, text).right for text in texts] for p, texts in zip(chosen, sampled.texts, strict=True)]
    numbers = {"greedy": share(right)}
    for level in sorted({problem.level for problem in chosen}):
        numbers[f"greedy, {level} operations"] = share(
            [flag for flag, problem in zip(right, chosen, strict=True) if problem.level == level]
        )
    numbers[f"one sample at temperature {TEMPERATURE}"] = share([flag for flags in each for flag in flags])
    numbers[f"majority of {SAMPLES}"] = share(
        [majority(texts) == problem.answer for problem, texts in zip(chosen, sampled.texts, strict=True)]
    )
    numbers[f"at least one of {SAMPLES} right"] = share([any(flags) for flags in each])
    return numbers


def verifier_numbers(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, sampled: Sampled) -> dict[str, float]:
    """Step accuracy on the sampled solutions, and shares of problems right when the verifier chooses."""
    pairs = [(p.text, text) for p, texts in zip(sampled.problems, sampled.texts, strict=True) for text in texts]
    scores = step_scores(model, tokenizer, pairs)
    of_right: list[bool] = []
    of_wrong: list[bool] = []
    best: list[bool] = []
    summed: list[bool] = []
    for index, problem in enumerate(sampled.problems):
        texts = sampled.texts[index]
        own = scores[index * SAMPLES : (index + 1) * SAMPLES]
        for text, marks in zip(texts, own, strict=True):
            for flag, mark in zip(judge(problem, text).steps, marks, strict=False):
                (of_right if flag else of_wrong).append((mark > 0.5) == flag)
        last = [marks[-1] for marks in own]
        best.append(extract_answer(texts[last.index(max(last))]) == problem.answer)
        summed.append(weighted(texts, last) == problem.answer)
    return {
        "step accuracy on sampled solutions": share(of_right + of_wrong),
        "step accuracy, right steps": share(of_right),
        "step accuracy, wrong steps": share(of_wrong),
        f"best of {SAMPLES} by the last step's score": share(best),
        f"weighted best of {SAMPLES}": share(summed),
    }


def table(numbers: dict[str, float]) -> str:
    """The numbers as the rows of a Markdown table, in percent."""
    rows = [f"| {name} | {100 * value:.1f}% |" for name, value in numbers.items()]
    return "\n".join(["| | |", "|---|---:|", *rows])


def generator_card(model: LlamaForCausalLM, numbers: dict[str, float], trained: str) -> str:
    return f"""# counting

A Llama of {model.num_parameters():,} parameters that solves multi-step counting problems, one equation a step, steps
parted by a blank line, the answer stated at the end. It is stopped half trained on purpose: it makes the mistakes that
search and verification are for.

{trained}

Right answers on the 500 held-out problems of `programs/data/counting-500.jsonl`, in the chat form, measured by the
training script on the float16 weights in this folder:

{table(numbers)}
"""


def verifier_card(
    model: LlamaForCausalLM, generator: dict[str, float], verifier: dict[str, float], trained: str
) -> str:
    return f"""# counting-prm

A process reward model of {model.num_parameters():,} parameters for counting problems, in the RLHFlow chat form: user
turn 1 is the problem, a space and step 1; every later user turn is one step; every assistant turn is "+". The score of
a step is the softmax over the logits of the tokens "+" and "-" at the token just before the assistant's "+". A step is
labelled wrong when it, or any step before it, is wrong.

{trained}

Measured by the training script on the float16 weights in this folder, over {SAMPLES} solutions that `counting` sampled
at temperature {TEMPERATURE} for each of the 500 held-out problems:

{table(verifier)}

The same solutions without a verifier:

{table(generator)}
"""
