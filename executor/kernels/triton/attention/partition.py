"""Which parts of decoding contexts, and which blocks of chunks, are a program's; told by lengths on the device."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def parts_of(length, start, sequence, size, STARTS: tl.constexpr, WINDOW: tl.constexpr):
    """Of sequences with contexts `length`: the first token to attend to, its part, and how many parts there are.

    A sequence without such a token has one part, which is empty. `start` is read where STARTS.
    """
    begin = length * 0
    if STARTS:
        begin = tl.load(start + sequence)
    if WINDOW > 0:
        begin = tl.maximum(begin, length - WINDOW)
    first = begin // size
    return begin, first, tl.maximum(tl.cdiv(length, size) - first, 1)


@triton.jit
def share_of(
    context,
    start,
    decodes,
    size,
    worker,
    workers,
    STARTS: tl.constexpr,
    WINDOW: tl.constexpr,
    COUNTED: tl.constexpr,
):
    """How many parts are worker `worker`'s, and the sequence and the number in it of the first of them.

    Parts are counted sequence by sequence; a worker has neighbouring ones.
    """
    i = tl.arange(0, COUNTED)
    parts = 0
    for at in range(0, decodes, COUNTED):
        there = at + i < decodes
        length = tl.load(context + at + i, mask=there, other=0)
        _, _, count = parts_of(length, start, tl.where(there, at + i, 0), size, STARTS, WINDOW)
        parts += tl.sum(tl.where(there, count, 0), 0)
    low = (worker.to(tl.int64) * parts // workers).to(tl.int32)
    top = ((worker + 1).to(tl.int64) * parts // workers).to(tl.int32)
    sequence, before, passed = 0, 0, 0
    for at in range(0, decodes, COUNTED):
        there = at + i < decodes
        length = tl.load(context + at + i, mask=there, other=0)
        _, _, count = parts_of(length, start, tl.where(there, at + i, 0), size, STARTS, WINDOW)
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
