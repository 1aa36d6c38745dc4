"""Training and evaluation batches for the generators: problems with their solutions, notes with their records."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from transformers import PreTrainedTokenizerFast

from qpdsl.family.tasks.counting import Problem, problems
from qpdsl.family.tasks.records import Note, notes

IGNORED = -100
"""Target value of the positions that carry no loss."""

MULTIPLE = 32
"""Batch widths are rounded up to this, which keeps the number of compiled shapes small."""

ROWS = 64
POOL = 16  # batches cut from one pool, so that a batch holds rows of like length
_NOTES_IN = 5  # one row in five is a note


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


def stacked(lists: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    """int64 [rows, width], padded on the right. Causal attention never looks right, so no mask is needed."""
    width = -(-max(map(len, lists)) // MULTIPLE) * MULTIPLE
    return torch.tensor([[*values, *[fill] * (width - len(values))] for values in lists])


def pad_rows(rows: Sequence[Row], pad_id: int) -> Batch:
    return Batch(stacked([row.ids for row in rows], pad_id), stacked([row.targets for row in rows], IGNORED))


def prompt_text(user: str) -> str:
    """The chat form of a user turn with the generation prompt."""
    return f"<|user|>{user}<|end|><|assistant|>"


def asked(task: Problem | Note) -> str:
    """The user turn of a task."""
    return task.text if isinstance(task, Problem) else task.prompt


def completion_rows(tokenizer: PreTrainedTokenizerFast, pairs: Sequence[tuple[str, str]]) -> list[Row]:
    """One row a (user turn, completion), with loss on the completion and its `<|end|>` only."""
    prompts = tokenizer([prompt_text(user) for user, _ in pairs])["input_ids"]
    answers = tokenizer([completion + "<|end|>" for _, completion in pairs])["input_ids"]
    rows = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = prompt + answer
        rows.append(Row(ids[:-1], [IGNORED] * (len(prompt) - 1) + answer))
    return rows


def pooled(rows: list[Row], pad_id: int, rng: random.Random) -> Iterator[Batch]:
    """Cut rows into batches of like length, in random order."""
    rows = sorted(rows, key=lambda row: len(row.ids))
    starts = list(range(0, len(rows), ROWS))
    rng.shuffle(starts)
    for start in starts:
        yield pad_rows(rows[start : start + ROWS], pad_id)


def fresh_pairs(seed: int, pool: int) -> list[tuple[str, str]]:
    """The texts of pool number `pool`: problems and notes that no other pool of the seed repeats."""
    number = seed * 1_000_003 + pool
    noted = ROWS * POOL // _NOTES_IN
    pairs = [(problem.text, problem.solution) for problem in islice(problems(number), ROWS * POOL - noted)]
    return pairs + [(note.prompt, note.json) for note in islice(notes(number), noted)]


def fresh_batches(tokenizer: PreTrainedTokenizerFast, seed: int, first: int) -> Iterator[Batch]:
    """An endless stream of training batches from batch number `first` on."""
    pool, skip = divmod(first, POOL)
    while True:
        rows = completion_rows(tokenizer, fresh_pairs(seed, pool))
        cut = pooled(rows, int(tokenizer.pad_token_id or 0), random.Random(f"order {seed} {pool}"))
        yield from islice(cut, skip, None)
        pool, skip = pool + 1, 0
