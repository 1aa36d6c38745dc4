"""Sizes of blocks and of parts for the attention kernels, chosen on the host without asking the device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.rounding import next_power_of_two
from qpdsl.executor.kernels.triton.common import architecture

# Bytes of shared memory that a thread block has on every CUDA device since Ampere, less a little for the compiler.
_SHARED = 97 * 1024
# Tokens of a part of a context, at most where there are more sequences than parts are needed for, and at least.
PART, _LEAST_PART = 512, 128
# With a context of this many tokens each, few sequences have parts enough for the device.
_CONTEXT = 4096
# Parts of all contexts of a batch have room for at most so many results of a head, unless bits must stay as they are.
_MOST_PARTS = 8192
# Query rows of chunks beside decoding sequences over quantized rows, where each warp multiplies by itself. With more of
# them over eight bits each warp would convert all keys and values; over four bits it does with fewer as well.
_QUANTIZED = {"int8": 32, "fp8": 32, "int4": 64}


@dataclass(frozen=True, slots=True)
class Tuning:
    """The sizes of an attention kernel.

    keys:   keys of one block (a power of two, at least 16)
    rows:   query rows of a program for a chunk or a shared prefix (a power of two, at least 16)
    small:  query rows of a program for decoding sequences
    split:  tokens of a part of a context, a multiple of `keys`; None to choose by `part_tokens`
    folded: chunks fold parts of `split` tokens, and the code of chunks, with its `rows`, computes decoding sequences as
            well: so decoding and prefilling a token give the same bits
    ahead:  blocks of keys and values that are loaded ahead
    warps:  warps of a program
    """

    keys: int = 64
    rows: int = 64
    small: int = 16
    split: int | None = None
    folded: bool = False
    ahead: int = 2
    warps: int = 4


@cache
def multiprocessors(device: torch.device) -> int:
    """The multiprocessors of a CUDA device; 1 for other devices."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def for_decode(rows: KVRows, fold: int) -> Tuning:
    """For one query a sequence. It is memory bound, so many small programs each have several loads in flight."""
    return _fit(1, fold, rows)


def for_prefill(rows: KVRows, fold: int, longest: int) -> Tuning:
    """For chunks of up to `longest` tokens."""
    return _fit(min(128, next_power_of_two(longest * fold)), fold, rows)


def for_mixed(rows: KVRows, fold: int) -> Tuning:
    """For decoding sequences and chunks in one launch, whose programs have the same number of warps.

    Where a group of four warps multiplies 64 rows (Hopper), programs of that size leave room for one of each kind on a
    multiprocessor. Elsewhere Triton gives each warp whole rows only with as many rows as a head is wide, and with fewer
    passes the weights of every block through shared memory. But then each warp converts all keys and values.
    """
    return _fit(64 if architecture() == 90 else _QUANTIZED.get(rows.kind, 128), fold, rows)


def for_fixed_bits(rows: KVRows, fold: int) -> Tuning:
    """For any batch: a row's bits depend on its own query and context only, and not on whether it is decoded."""
    fit = _fit(64 if architecture() == 90 else _QUANTIZED.get(rows.kind, 64), fold, rows)
    # The state of the parts before takes as many registers as that of a part.
    crowded = fit.rows * next_power_of_two(rows.dim) > 64 * 128
    return replace(fit, split=PART, folded=True, warps=8 if crowded else fit.warps)


def for_cascade(rows: KVRows, fold: int, width: int) -> Tuning:
    """For up to `width` sequences over one prefix."""
    return _fit(min(64, next_power_of_two(width * fold)), fold, rows)


def part_tokens(tuning: Tuning, sequences: int, programs: int, longest: int, room: int) -> int:
    """The tokens of a part: a power of two times `tuning.keys`, or `tuning.split`.

    `programs` programs attend to whole contexts of up to `longest` tokens, and `room` run at a time. With few of them
    the parts are smaller. `longest` may be much more than the contexts are (the limit of a captured graph), so that it
    only bounds the memory for results.
    """
    if tuning.split is not None:
        return tuning.split
    size = PART
    while size > max(_LEAST_PART, tuning.keys) and size * room > _CONTEXT * programs:
        size //= 2
    while sequences * -(-longest // size) > _MOST_PARTS:
        size *= 2
    return size


def resident(rows: KVRows, tuning: Tuning) -> int:
    """Programs that a multiprocessor has at a time: those that are needed to keep its loads in flight."""
    width = next_power_of_two(rows.dim) * rows.data.element_size()
    return 2 if 2 * tuning.ahead * tuning.keys * width > _SHARED // 3 else 4


def _fit(size: int, fold: int, rows: KVRows) -> Tuning:
    """The most keys a block, and blocks ahead, with which `size` query rows fit a multiprocessor's shared memory.

    A program has at least 16 query rows, and at least the `fold` query heads of a KV head. Float32 is multiplied as
    three products of shorter numbers, whose parts need shared memory as well.
    """
    wide = rows.data.dtype == torch.float32
    width = next_power_of_two(rows.dim) * max(rows.data.element_size(), 2)
    small = max(16, next_power_of_two(fold))
    size = max(small, min(size, 32 if wide else 64 if rows.dim > 128 else 128))
    # Over values of four bits a warp that multiplies by itself has whole rows, and registers for fewer keys.
    crowded = rows.kind == "int4" and size > 16 and (architecture() != 90 or size < 64)
    keys, ahead = (32, 1) if wide else (32, 2) if rows.dim > 128 or crowded else (64, 2)
    # What passes the weights of a block from one product to the next, see `for_mixed`.
    scratch = 0 if architecture() == 90 or size >= next_power_of_two(rows.dim) else size * keys * 2
    while size * width + ahead * 2 * keys * width + scratch > _SHARED and (ahead > 1 or keys > 16):
        ahead, keys = (ahead - 1, keys) if ahead > 1 else (ahead, keys // 2)
    warps = 8 if size >= (32 if wide else 128) else 2 if crowded and size == 32 else 4
    return Tuning(keys=keys, rows=size, small=small, ahead=ahead, warps=warps)
