"""Training and evaluation batches for the generators: problems with their solutions, notes with their records."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from transformers import PreTrainedTokenizerFast

from family.tasks.counting import problems
from family.tasks.records import notes

IGNORED = -100
"""Target of a position that carries no loss."""

MULTIPLE = 32
"""Batch widths are rounded up to a multiple of this, which keeps the number of compiled shapes small."""

ROWS = 64
POOL = 16  # batches cut from one pool, so that a batch holds rows of similar length
_NOTE_EVERY = 5  # one row in five is a note


@dataclass(frozen=True)
class CompletionRow:
    """One training text: token ids, and for every position the id to predict, or `IGNORED`."""

    ids: list[int]
    targets: list[int]


@dataclass(frozen=True)
class CompletionBatch:
    """Rows padded on the right to one width; both tensors are int64 [rows, width]."""

    ids: torch.Tensor
    targets: torch.Tensor


def padded(lists: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    """int64 [rows, width], padded on the right. Causal attention never looks right, so no mask is needed."""
    width = -(-max(map(len, lists)) // MULTIPLE) * MULTIPLE
    return torch.tensor([[*values, *[fill] * (width - len(values))] for values in lists])


def pad_rows(rows: Sequence[CompletionRow], pad_id: int) -> CompletionBatch:
    return CompletionBatch(padded([row.ids for row in rows], pad_id), padded([row.targets for row in rows], IGNORED))


def prompt_text(user: str) -> str:
    """The chat form of a user turn with the generation prompt."""
    return f"<|user|>{user}<|end|><|assistant|>"


def completion_rows(tokenizer: PreTrainedTokenizerFast, pairs: Sequence[tuple[str, str]]) -> list[CompletionRow]:
    """A row for each (user turn, completion), with loss on the completion and its `<|end|>` only."""
    prompts = tokenizer([prompt_text(user) for user, _ in pairs])["input_ids"]
    answers = tokenizer([completion + "<|end|>" for _, completion in pairs])["input_ids"]
    rows = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = prompt + answer
        rows.append(CompletionRow(ids[:-1], [IGNORED] * (len(prompt) - 1) + answer))
    return rows


def shuffled_batches(
    rows: list[CompletionRow], pad_id: int, rng: random.Random, size: int = ROWS
) -> Iterator[CompletionBatch]:
    """The rows cut into batches of similar length, `size` rows each, in random order."""
    rows = sorted(rows, key=lambda row: len(row.ids))
    starts = list(range(0, len(rows), size))
    rng.shuffle(starts)
    for start in starts:
        yield pad_rows(rows[start : start + size], pad_id)


def fresh_pairs(seed: int, pool: int) -> list[tuple[str, str]]:
    """The texts of pool number `pool`: problems and notes that no other pool of the seed repeats."""
    number = seed * 1_000_003 + pool
    note_count = ROWS * POOL // _NOTE_EVERY
    pairs = [(problem.text, problem.solution) for problem in islice(problems(number), ROWS * POOL - note_count)]
    return pairs + [(note.prompt, note.json) for note in islice(notes(number), note_count)]


def pooled_batches(
    rows_of: Callable[[int], list[CompletionRow]], pad_id: int, seed: int, first: int, size: int = ROWS
) -> Iterator[CompletionBatch]:
    """An endless stream of batches from batch number `first` on; `rows_of(pool)` are the rows of `POOL` batches."""
    pool, skip = divmod(first, POOL)
    while True:
        batches = shuffled_batches(rows_of(pool), pad_id, random.Random(f"order {seed} {pool}"), size)
        yield from islice(batches, skip, None)
        pool, skip = pool + 1, 0


def fresh_batches(tokenizer: PreTrainedTokenizerFast, seed: int, first: int) -> Iterator[CompletionBatch]:
    """An endless stream of training batches from batch number `first` on."""
    return pooled_batches(
        lambda pool: completion_rows(tokenizer, fresh_pairs(seed, pool)), int(tokenizer.pad_token_id or 0), seed, first
    )
