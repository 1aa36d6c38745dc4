"""Training and evaluation batches for the counting generator."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from transformers import PreTrainedTokenizerFast

from qpdsl.zoo.task import Problem, problems

IGNORED = -100
"""Target value of the positions that carry no loss."""

_POOL = 16  # batches cut from one pool, so that a batch holds rows of like length
_MULTIPLE = 16  # widths are rounded up to this, which keeps the number of compiled shapes small


@dataclass(frozen=True)
class Row:
    """One training text: token ids, and for every position the id it should predict or `IGNORED`."""

    ids: list[int]
    targets: list[int]


@dataclass(frozen=True)
class Batch:
    """Rows padded on the right to one width; both tensors are int64 [rows, width]."""

    ids: torch.Tensor
    targets: torch.Tensor


def pad_rows(rows: Sequence[Row], pad_id: int) -> Batch:
    """Stack rows, padded on the right. Causal attention never looks right, so no mask is needed."""
    width = -(-max(len(row.ids) for row in rows) // _MULTIPLE) * _MULTIPLE
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    targets = torch.full((len(rows), width), IGNORED, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = torch.tensor(row.ids)
        targets[index, : len(row.targets)] = torch.tensor(row.targets)
    return Batch(ids, targets)


def prompt_text(problem: str) -> str:
    """The chat form of a problem with the generation prompt."""
    return f"<|user|>{problem}<|end|><|assistant|>"


def solution_rows(tokenizer: PreTrainedTokenizerFast, batch: Sequence[Problem]) -> list[Row]:
    """One row a problem, with loss on the solution and its `<|end|>` only."""
    prompts = tokenizer([prompt_text(problem.text) for problem in batch])["input_ids"]
    answers = tokenizer([problem.solution + "<|end|>" for problem in batch])["input_ids"]
    rows = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = prompt + answer
        rows.append(Row(ids[:-1], [IGNORED] * (len(prompt) - 1) + answer))
    return rows


def pooled(rows: list[Row], size: int, pad_id: int, rng: random.Random) -> Iterator[Batch]:
    """Cut rows into batches of like length, in random order."""
    rows = sorted(rows, key=lambda row: len(row.ids))
    starts = list(range(0, len(rows), size))
    rng.shuffle(starts)
    for start in starts:
        yield pad_rows(rows[start : start + size], pad_id)


def solution_batches(tokenizer: PreTrainedTokenizerFast, seed: int, first: int, size: int = 64) -> Iterator[Batch]:
    """An endless stream of training batches; `first` skips that many without making them all."""
    pool, skip = divmod(first, _POOL)
    while True:
        rng = random.Random(f"order {seed} {pool}")
        fresh = list(islice(problems(seed * 1_000_003 + pool), size * _POOL))
        cut = pooled(solution_rows(tokenizer, fresh), size, int(tokenizer.pad_token_id or 0), rng)
        yield from islice(cut, skip, None)
        pool, skip = pool + 1, 0
