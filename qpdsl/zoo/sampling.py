"""Plain batched sampling and step scoring, for measuring the built-in models without the engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from qpdsl.zoo.batches import prompt_text
from qpdsl.zoo.task import split_steps


def solve(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[str],
    temperature: float = 0.0,
    rows: int = 250,
) -> list[str]:
    """One solution text a problem, greedy at temperature 0; at most 96 new tokens each, `rows` problems at a time."""
    texts: list[str] = []
    for start in range(0, len(problems), rows):
        prompts = [prompt_text(problem) for problem in problems[start : start + rows]]
        encoded = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        how = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
        out = model.generate(
            input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"], max_new_tokens=96, **how
        )
        new = out[:, encoded["input_ids"].shape[1] :]
        texts += tokenizer.batch_decode(new, skip_special_tokens=True)
    return texts


def verifier_text(problem: str, steps: Sequence[str]) -> str:
    """The RLHFlow chat form of a solution, every assistant turn "+"."""
    turns = [f"{problem} {steps[0]}", *steps[1:]] if steps else [problem]
    return "".join(f"<|user|>{turn}<|end|><|assistant|>+<|end|>" for turn in turns)


def step_scores(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, pairs: Sequence[tuple[str, str]], rows: int = 250
) -> list[list[float]]:
    """For every (problem, solution) pair the probability of "+" after each step; at least one score."""
    plus, minus, assistant = tokenizer.convert_tokens_to_ids(["+", "-", "<|assistant|>"])
    scores: list[list[float]] = []
    for start in range(0, len(pairs), rows):
        texts = [verifier_text(problem, split_steps(text)) for problem, text in pairs[start : start + rows]]
        ids = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right")["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits
        right = (logits[..., plus] - logits[..., minus]).float().sigmoid()
        scores += [row[marks].tolist() for row, marks in zip(right, ids == assistant, strict=True)]
    return scores
