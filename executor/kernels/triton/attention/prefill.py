"""Prefill attention over pages: chunks of different lengths, each query over the cached prefix and its own chunk.

The query heads of a KV head are stacked with the tokens of a block, so that a key is read once for all of them (as in
FlashAttention-2, Dao, 2023, over pages). Blocks of keys begin at multiples of their size in the sequence, and a block
that a row does not see does not change it. So the bits of a row depend on its own query and context, not on how the
prompt was cut into chunks or on what else is in the batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.triton.attention.tuning import Tuning, for_prefill
from qpdsl.executor.kernels.triton.common import attend_range, dot_type, geometry, sunk


@triton.jit(do_not_specialize=["layer", "stride_pages", "first", "sequences", "stride_places"])
def prefill_kernel(
    query,
    rows,
    scales,
    pages,
    context,
    query_start,
    sinks,
    branches,
    places,
    out,
    layer,
    stride_token,
    stride_head,
    stride_pages,
    stride_places,
    first,
    sequences,
    scale,
    softcap,
    ROW: tl.constexpr,
    PAGE: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    KIND: tl.constexpr,
    DOT: tl.constexpr,
    CAPPED: tl.constexpr,
    WINDOW: tl.constexpr,
    FOLD: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    SINKS: tl.constexpr,
    TREES: tl.constexpr,
):
    """A program for each block of M // FOLD tokens (axis 0, in reverse: the last have most to do) and KV head (axis 1).

    The chunks to compute are those of the sequences from `first` to `first + sequences`.
    """
    TOKENS: tl.constexpr = M // FOLD
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    # The last sequence whose first block is not after this one. A sequence of n tokens has n // TOKENS + 1 blocks.
    origin = tl.load(query_start + first)
    low = first
    high = first + sequences
    while low + 1 < high:
        middle = (low + high) // 2
        if (tl.load(query_start + middle) - origin) // TOKENS + middle - first <= block:
            low = middle
        else:
            high = middle
    sequence = low
    begin = tl.load(query_start + sequence)
    count = tl.load(query_start + sequence + 1) - begin
    block -= (begin - origin) // TOKENS + sequence - first
    if block * TOKENS >= count:
        return
    length = tl.load(context + sequence)

    r, d = tl.arange(0, M), tl.arange(0, D_PAD)
    place = block * TOKENS + r // FOLD
    heads = head * FOLD + r % FOLD
    real = (r < TOKENS * FOLD) & (place < count)
    mask = real[:, None] & (d < D)[None, :]
    token = (begin + place).to(tl.int64)
    q = tl.load(query + (token * stride_token + heads * stride_head)[:, None] + d[None, :], mask=mask, other=0.0)
    q = q.to(DOT)
    position = length - count + place

    top = tl.minimum(length - count + (block + 1) * TOKENS, length)
    bottom = top * 0
    if WINDOW > 0:
        bottom = tl.maximum(length - count + block * TOKENS - WINDOW + 1, 0) // N * N
    high, total = sunk(sinks, heads, real, True, M, SINKS)
    page_row = pages + sequence.to(tl.int64) * stride_pages
    place_row = places + sequence.to(tl.int64) * stride_places
    branch = length
    if TREES:
        branch = tl.load(branches + sequence)
    mean, total, high = attend_range(
        q, total, high, rows, scales, page_row, branch, place_row, layer, head, bottom, top, bottom, position,
        scale, softcap, ROW, PAGE, KV, D, D_PAD, KIND, DOT, CAPPED, WINDOW, M, N, True, False, TREES,
    )  # fmt: skip
    line = token * (KV * FOLD) + heads
    tl.store(out + line[:, None] * D + d[None, :], mean.to(out.dtype.element_ty), mask=mask)


def prefill(
    query: torch.Tensor,
    rows: KVRows,
    batch: PagedBatch,
    layer: int,
    scoring: Scoring,
    out: torch.Tensor,
    first: int = 0,
    tuning: Tuning | None = None,
    deterministic: bool = False,
) -> None:
    """Writes `out` [T, H, D] at the tokens of the sequences from `first` on. Twin: `reference.attention`.

    `query` [T, H, D], last dimension contiguous.
    """
    fold = query.shape[1] // rows.kv_heads
    tuning = tuning or for_prefill(rows, fold, batch.longest_query, deterministic)
    sequences = batch.sequences - first
    # Sequences before `first` have one token each.
    blocks = (query.shape[0] - first) // (tuning.rows // fold) + sequences
    prefill_kernel[(blocks, rows.kv_heads)](
        query,
        rows.data,
        rows.scales,
        batch.pages,
        batch.context,
        batch.query_start,
        query if scoring.sinks is None else scoring.sinks,
        batch.context if batch.paths is None else batch.paths.start,
        batch.context if batch.paths is None else batch.paths.places,
        out,
        layer,
        query.stride(0),
        query.stride(1),
        batch.pages.stride(0),
        0 if batch.paths is None else batch.paths.places.stride(0),
        first,
        sequences,
        scoring.scale,
        scoring.softcap or 1.0,
        **geometry(rows),
        DOT=dot_type(query),
        CAPPED=scoring.softcap is not None,
        WINDOW=scoring.window or 0,
        FOLD=fold,
        M=tuning.rows,
        N=tuning.keys,
        SINKS=scoring.sinks is not None,
        TREES=batch.paths is not None,
        num_warps=tuning.warps,
        num_stages=tuning.ahead + 1,
    )
