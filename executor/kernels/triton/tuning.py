"""How the attention kernels' work is cut up: sizes of blocks and of parts, chosen on the host without asking the
device, and on the device, which parts of decoding contexts and which blocks of chunks are a program's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import next_power_of_two
from qpdsl.executor.kernels.triton.common import architecture

# Bytes of shared memory that a thread block has on every CUDA device since Ampere, less a little for the compiler.
_SHARED = 97 * 1024
# Tokens of a part of a context, at most where there are more sequences than parts are needed for, and at least.
PART, _MIN_PART = 512, 128
# With a context of this many tokens each, few sequences have parts enough for the device.
_CONTEXT = 4096
# Parts of all contexts of a batch have room for at most so many results of a head, unless bits must stay as they are.
_MAX_PARTS = 8192
# Query rows of chunks beside decoding sequences over quantized rows, where each warp multiplies by itself: with more of
# them each would convert all keys and values.
_QUANTIZED = 32


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


class Tile(NamedTuple):
    """What an attention kernel is compiled for beside its rows: see `Tuning` and `Scoring`.

    FOLD:    query heads of a KV head
    M, N:    query rows, and keys of a block
    WINDOW:  0 for none
    COUNTED: sequences whose parts a program counts at a time
    """

    FOLD: tl.constexpr
    M: tl.constexpr
    SMALL: tl.constexpr
    N: tl.constexpr
    FOLDED: tl.constexpr
    WINDOW: tl.constexpr
    COUNTED: tl.constexpr

    @classmethod
    def of(cls, tuning: Tuning, fold: int, window: int | None, counted: int = 1) -> Tile:
        """The constants of a launch."""
        sizes = (fold, tuning.rows, tuning.small, tuning.keys, tuning.folded, window or 0, counted)
        return cls(*map(tl.constexpr, sizes))


@cache
def multiprocessors(device: torch.device) -> int:
    """The multiprocessors of a CUDA device; 1 for other devices."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def for_decode(rows: KVRows, fold: int) -> Tuning:
    """For one query a sequence. It is memory bound, so many small programs each have several loads in flight."""
    return _fit(1, fold, rows)


def for_prefill(rows: KVRows, fold: int, longest: int) -> Tuning:
    """For chunks of up to `longest` tokens."""
    return _stacked(min(128, next_power_of_two(longest * fold)), fold, rows)


def for_mixed(rows: KVRows, fold: int) -> Tuning:
    """For decoding sequences and chunks in one launch, whose programs have the same number of warps.

    Where warps multiply 64 rows together, programs of that size leave room for one of each kind on a multiprocessor.
    Elsewhere Triton gives each warp whole rows only with as many rows as a head is wide, and with fewer passes the
    weights of every block through shared memory. But then each warp converts all keys and values.
    """
    return _fit(64 if _grouped() else 128 if rows.kind == "plain" else _QUANTIZED, fold, rows)


def for_fixed_bits(rows: KVRows, fold: int) -> Tuning:
    """For any batch: a row's bits depend on its own query and context only, and not on whether it is decoded."""
    # The sums of the parts before take as many registers as those of a part.
    size = 16 if rows.data.dtype == torch.float32 else 64 if _grouped() and rows.dim <= 128 else 32
    fit = _fit(size, fold, rows)
    warps = 8 if rows.dim > 128 else fit.warps
    return replace(fit, keys=min(fit.keys, 32), split=PART, folded=True, warps=warps)


def for_cascade(rows: KVRows, fold: int, width: int) -> Tuning:
    """For up to `width` sequences over one prefix."""
    return _stacked(min(64, next_power_of_two(width * fold)), fold, rows)


def part_tokens(tuning: Tuning, sequences: int, programs: int, longest: int, room: int) -> int:
    """The tokens of a part: a power of two times `tuning.keys`, or `tuning.split`.

    `programs` programs attend to whole contexts of up to `longest` tokens, and `room` run at a time. With few of them
    the parts are smaller. `longest` may be much more than the contexts are (the limit of a captured graph), so that it
    only bounds the memory for results.
    """
    if tuning.split is not None:
        return tuning.split
    size = PART
    while size > max(_MIN_PART, tuning.keys) and size * room > _CONTEXT * programs:
        size //= 2
    while sequences * -(-longest // size) > _MAX_PARTS:
        size *= 2
    return size


def resident(rows: KVRows, tuning: Tuning) -> int:
    """Programs that a multiprocessor has at a time: those that are needed to keep its loads in flight."""
    width = next_power_of_two(rows.dim) * rows.data.element_size()
    return 2 if tuning.folded or 2 * tuning.ahead * tuning.keys * width > _SHARED // 3 else 4


def _grouped() -> bool:
    """Whether four warps multiply 64 rows together (Hopper), with what they multiply in shared memory."""
    return architecture() == 90


def _crowded(size: int, rows: KVRows, warps: int) -> bool:
    """Whether each thread adds up 64 numbers or more: then few of its registers are left."""
    return size * next_power_of_two(rows.dim) >= 64 * 32 * warps


def _stacked(size: int, fold: int, rows: KVRows) -> Tuning:
    """`_fit` where no program decodes: multiplying a block of keys may take longer than loading the next one.

    So one block ahead is enough where threads are crowded, and leaves registers to convert quantized keys and values.
    """
    fit = _fit(size, fold, rows)
    return replace(fit, ahead=1) if rows.kind != "plain" and _crowded(fit.rows, rows, fit.warps) else fit


def _fit(size: int, fold: int, rows: KVRows) -> Tuning:
    """The most keys a block, and blocks ahead, with which `size` query rows fit a multiprocessor's shared memory.

    And its registers, so that the compiler spills none: `benchmarks.gpu.compiled` shows where it would. A program has
    at least 16 query rows, and at least the `fold` query heads of a KV head.
    """
    wide, grouped, dim = rows.data.dtype == torch.float32, _grouped(), next_power_of_two(rows.dim)
    width = dim * max(rows.data.element_size(), 2)
    small = max(16, next_power_of_two(fold))
    most, keys, ahead = (32, 32, 1) if wide else (128, 64, 2)
    if dim > 128:
        most, keys = most // 2, keys // 2
    size = max(small, min(size, most))
    warps = 8 if size >= (32 if wide else 128) or (not grouped and size * dim >= 128 * 128) else 4
    # There is no room for the scores of more keys.
    if not grouped and _crowded(size, rows, warps):
        keys = min(keys, 32)
    # What passes the weights of a block from one product to the next, see `for_mixed`.
    scratch = 0 if grouped or size >= dim else size * keys * 2
    while size * width + ahead * 2 * keys * width + scratch > _SHARED and (ahead > 1 or keys > 16):
        ahead, keys = (ahead - 1, keys) if ahead > 1 else (ahead, keys // 2)
    return Tuning(keys=keys, rows=size, small=small, ahead=ahead, warps=warps)


@triton.jit
def parts_of(length, start, sequence, size, WINDOW: tl.constexpr):
    """Of sequences with contexts `length`: the first token to attend to, its part, and how many parts there are.

    A sequence without such a token has one part, which is empty. `start`: where its own tokens begin; None for 0.
    """
    begin = length * 0
    if start is not None:
        begin = tl.load(start + sequence)
    if WINDOW > 0:
        begin = tl.maximum(begin, length - WINDOW)
    first = begin // size
    return begin, first, tl.maximum(tl.cdiv(length, size) - first, 1)


@triton.jit
def share_of(context, start, decodes, size, worker, workers, WINDOW: tl.constexpr, COUNTED: tl.constexpr):
    """How many parts are worker `worker`'s, and the sequence and the number in it of the first of them.

    Parts are counted sequence by sequence; a worker has neighbouring ones.
    """
    i = tl.arange(0, COUNTED)
    parts = 0
    for at in range(0, decodes, COUNTED):
        there = at + i < decodes
        length = tl.load(context + at + i, mask=there, other=0)
        _, _, count = parts_of(length, start, tl.where(there, at + i, 0), size, WINDOW)
        parts += tl.sum(tl.where(there, count, 0), 0)
    low = (worker.to(tl.int64) * parts // workers).to(tl.int32)
    top = ((worker + 1).to(tl.int64) * parts // workers).to(tl.int32)
    sequence, before, passed = 0, 0, 0
    for at in range(0, decodes, COUNTED):
        there = at + i < decodes
        length = tl.load(context + at + i, mask=there, other=0)
        _, _, count = parts_of(length, start, tl.where(there, at + i, 0), size, WINDOW)
        ends = before + tl.cumsum(tl.where(there, count, 0), 0)
        over = there & (ends <= low)
        sequence += tl.sum(over.to(tl.int32), 0)
        passed = tl.maximum(passed, tl.max(tl.where(over, ends, 0), 0))
        before = tl.max(ends, 0)
    return top - low, sequence, low - passed


@triton.jit
def block_of(query_start, first, sequences, block, TOKENS: tl.constexpr):
    """The sequence of block `block` of the chunks from sequence `first` on, and the block's number in it.

    A chunk of n tokens has n // TOKENS + 1 blocks, so that its first block is known from where it starts.
    """
    origin = tl.load(query_start + first)
    low = first
    high = sequences
    # The last sequence whose first block is not after this one.
    while low + 1 < high:
        middle = (low + high) // 2
        if (tl.load(query_start + middle) - origin) // TOKENS + middle - first <= block:
            low = middle
        else:
            high = middle
    return low, block - ((tl.load(query_start + low) - origin) // TOKENS + low - first)
