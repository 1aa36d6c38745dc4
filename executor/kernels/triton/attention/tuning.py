"""Block sizes and split counts of the attention kernels, chosen on the host without asking the device for a number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.rounding import next_power_of_two

# Bytes of shared memory that a thread block has on every CUDA device since Ampere, less a little for the compiler.
_SHARED = 97 * 1024
# Programs of the decode kernel that run on one multiprocessor at a time.
_RESIDENT = 2
# With more splits than this, merging costs more than splitting gains.
_MOST_SPLITS = 64


@dataclass(frozen=True, slots=True)
class Tuning:
    """The sizes of an attention kernel.

    keys:   keys of one block (a power of two, at least 16)
    rows:   query rows of one program (a power of two, at least 16)
    splits: parts of a context; None to choose by `split_count`
    least:  the least tokens of a part
    ahead:  blocks of keys and values that are loaded ahead
    warps:  warps of a program
    """

    keys: int = 64
    rows: int = 16
    splits: int | None = None
    least: int = 128
    ahead: int = 2
    warps: int = 4


@cache
def multiprocessors(device: torch.device) -> int:
    """The multiprocessors of a CUDA device; 1 for other devices."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def for_decode(rows: KVRows, fold: int) -> Tuning:
    """For one query a sequence. It is memory bound, so many small programs each have several loads in flight."""
    return _fit(1, fold, rows)


def for_prefill(rows: KVRows, fold: int, longest: int, deterministic: bool) -> Tuning:
    """For chunks of up to `longest` tokens. `deterministic`: the same blocks for any batch."""
    size = 64 if deterministic else min(128, next_power_of_two(longest * fold))
    return _fit(size, fold, rows)


def for_cascade(rows: KVRows, fold: int, width: int) -> Tuning:
    """For up to `width` sequences over one prefix."""
    return _fit(min(64, next_power_of_two(width * fold)), fold, rows)


def split_count(programs: int, longest: int, tuning: Tuning, processors: int) -> int:
    """How many parts to split contexts of up to `longest` tokens into, where unsplit `programs` programs would run.

    It is the smallest count whose last wave of programs is nearly as full as that of any count: the rule of
    Flash-Decoding's `num_splits_heuristic` (Dao, Haziza, Massa and Sizov, 2023).
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


def _fit(size: int, fold: int, rows: KVRows) -> Tuning:
    """The most keys a block, and blocks ahead, with which `size` query rows fit a multiprocessor's shared memory.

    A program has at least 16 query rows, and at least the `fold` query heads of a KV head. Float32 is multiplied as
    three products of shorter numbers, whose parts need shared memory as well.
    """
    wide = rows.data.dtype == torch.float32
    width = next_power_of_two(rows.dim) * max(rows.data.element_size(), 2)
    size = max(16, next_power_of_two(fold), min(size, 32 if wide else 64 if rows.dim > 128 else 128))
    # Values of four bits take registers to be spread out.
    keys, ahead = (32, 1) if wide else (32, 2) if rows.dim > 128 or rows.kind == "int4" else (64, 2)
    while size * width + ahead * 2 * keys * width > _SHARED and (ahead > 1 or keys > 16):
        ahead, keys = (ahead - 1, keys) if ahead > 1 else (ahead, keys // 2)
    return Tuning(keys=keys, rows=size, ahead=ahead, warps=8 if size >= (32 if wide else 128) else 4)
