"""Block sizes and split counts, chosen on the host from what is known there: no device is asked for a number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from qpdsl.executor.kernels.data.kv_rows import Rows
from qpdsl.executor.kernels.data.paged_batch import power_of_two

# Shared memory of a thread block that every CUDA device since Ampere has, bytes, less a little for the compiler's own.
_SHARED = 97 * 1024
# Programs of the decode kernel that one multiprocessor holds at a time.
_RESIDENT = 2
# More partial results than this cost more to merge than the splitting gains.
_MOST_SPLITS = 64


@dataclass(frozen=True, slots=True)
class Tuning:
    """How an attention kernel is cut.

    keys:   keys of one block (a power of two, at least 16)
    rows:   query rows of one program (a power of two, at least 16)
    splits: parts of a context, None to choose
    least:  no part is shorter than this many tokens
    ahead:  blocks of keys and values that are loaded ahead
    warps:  of a program
    """

    keys: int = 64
    rows: int = 16
    splits: int | None = None
    least: int = 128
    ahead: int = 2
    warps: int = 4


@cache
def multiprocessors(device: torch.device) -> int:
    """Of a CUDA device; 1 elsewhere."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def for_decode(rows: Rows, fold: int) -> Tuning:
    """One query a sequence: memory bound, so many small programs with several loads in flight each."""
    return _fit(1, fold, rows)


def for_prefill(rows: Rows, fold: int, longest: int, deterministic: bool) -> Tuning:
    """Chunks of up to `longest` tokens. `deterministic`: the same blocks whatever the batch."""
    wanted = 64 if deterministic else min(128, power_of_two(longest * fold))
    return _fit(wanted, fold, rows)


def for_cascade(rows: Rows, fold: int, width: int) -> Tuning:
    """Up to `width` sequences over one prefix."""
    return _fit(min(64, power_of_two(width * fold)), fold, rows)


def split_count(programs: int, longest: int, tuning: Tuning, processors: int) -> int:
    """Into how many parts to cut contexts of up to `longest` tokens where `programs` would run without a cut.

    The smallest count whose last wave of programs is nearly as full as any count's (the rule of FlashDecoding's
    `num_splits_heuristic`: Dao, Haziza, Massa and Sizov, 2023).
    """
    if tuning.splits is not None:
        return tuning.splits
    room = processors * _RESIDENT
    most = min(_MOST_SPLITS, -(-longest // tuning.least))
    if most <= 1 or programs >= 0.8 * room:
        return 1
    fill = {}
    for count in range(1, most + 1):
        waves = programs * count / room
        fill[count] = waves / -(-programs * count // room)
    best = max(fill.values())
    return next(count for count, share in fill.items() if share >= 0.85 * best)


def _fit(size: int, fold: int, rows: Rows) -> Tuning:
    """The most keys a block, and blocks ahead, with which `size` query rows fit a multiprocessor's shared memory.

    A program has 16 query rows at least, and room for the `fold` query heads of a key head.

    Float32 is multiplied as three products of shorter numbers, whose parts need the room as well.
    """
    wide = rows.data.dtype == torch.float32
    width = power_of_two(rows.dim) * max(rows.data.element_size(), 2)
    size = max(16, power_of_two(fold), min(size, 32 if wide else 64 if rows.dim > 128 else 128))
    keys, ahead = (32, 1) if wide else (32, 2) if rows.dim > 128 else (64, 2)
    while size * width + ahead * 2 * keys * width > _SHARED and (ahead > 1 or keys > 16):
        ahead, keys = (ahead - 1, keys) if ahead > 1 else (ahead, keys // 2)
    return Tuning(keys=keys, rows=size, ahead=ahead, warps=8 if size >= (32 if wide else 128) else 4)
