"""Batched sampling and step scoring with transformers alone, for training and measuring without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from family.tasks.counting import Problem, problems, split_steps
from family.tasks.records import notes
from family.training.batches import prompt_text

TEMPERATURES = (0.6, 0.8, 1.0, 1.2)
_PROBLEMS_PER_NOTE = 8
_MAX_NEW_TOKENS = 128
_SEED = 77_000_000


@dataclass(frozen=True)
class TaskSample:
    """What a model wrote for a training task; `number` is a problem's place in `sampled_problems`, None for a note."""

    number: int | None
    prompt: str
    text: str
    temperature: float


def sampled_problems(count: int, seed: int) -> list[Problem]:
    """The training problems that samples are drawn for; the same seed gives the same ones."""
    return list(islice(problems(_SEED + seed), count))


def sample_tasks(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int, seed: int
) -> list[TaskSample]:
    """One completion each for `count` problems, and for an eighth as many notes, at temperatures taken in turn."""
    torch.manual_seed(seed)
    prompts: list[tuple[int | None, str]] = list(enumerate(problem.text for problem in sampled_problems(count, seed)))
    prompts += [(None, note.prompt) for note in islice(notes(_SEED + seed), count // _PROBLEMS_PER_NOTE)]
    samples = []
    for offset, temperature in enumerate(TEMPERATURES):
        part = prompts[offset :: len(TEMPERATURES)]
        texts = solve(model, tokenizer, [prompt for _, prompt in part], temperature)
        samples += [
            TaskSample(number, prompt, text, temperature) for (number, prompt), text in zip(part, texts, strict=True)
        ]
    return samples


def solve(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    temperature: float = 0.0,
    rows: int = 250,
) -> list[str]:
    """A completion for each user turn, greedy at temperature 0: at most 128 new tokens each, `rows` turns at a time."""
    texts: list[str] = []
    for start in range(0, len(prompts), rows):
        turns = [prompt_text(prompt) for prompt in prompts[start : start + rows]]
        encoded = tokenizer(turns, return_tensors="pt", padding=True, padding_side="left").to(model.device)
        greedy = {"do_sample": False}
        options = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else greedy
        ids, mask = encoded["input_ids"], encoded["attention_mask"]
        out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=_MAX_NEW_TOKENS, **options)
        new = out[:, ids.shape[1] :]
        texts += tokenizer.batch_decode(new, skip_special_tokens=True)
    return texts


def continue_rows(model: LlamaForCausalLM, rows: Sequence[list[int]], room: int, end: int) -> list[list[int]]:
    """Greedy continuations of rows of token ids, each up to and including `end`, or `room` tokens long."""
    width = max(map(len, rows))
    ids = torch.tensor([[end] * (width - len(row)) + row for row in rows], device=model.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=model.device)
    out = model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=room, do_sample=False, eos_token_id=end, pad_token_id=end
    )
    return [row[: row.index(end) + 1] if end in row else row for row in out[:, width:].tolist()]


def verifier_text(problem: str, steps: Sequence[str]) -> str:
    """The RLHFlow chat form of a solution, every assistant turn "+"."""
    turns = [f"{problem} {steps[0]}", *steps[1:]] if steps else [problem]
    return "".join(f"<|user|>{turn}<|end|><|assistant|>+<|end|>" for turn in turns)


def step_scores(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, pairs: Sequence[tuple[str, str]], rows: int = 250
) -> list[list[float]]:
    """For each (problem, solution) pair the probability of "+" after each step, at least one score."""
    plus, minus, assistant = tokenizer.convert_tokens_to_ids(["+", "-", "<|assistant|>"])
    scores: list[list[float]] = []
    for start in range(0, len(pairs), rows):
        texts = [verifier_text(problem, split_steps(text)) for problem, text in pairs[start : start + rows]]
        ids = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right")["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=ids.to(model.device), use_cache=False).logits.cpu()
        probabilities = (logits[..., plus] - logits[..., minus]).float().sigmoid()
        scores += [row[prompts].tolist() for row, prompts in zip(probabilities, ids == assistant, strict=True)]
    return scores
