"""Cascade attention: decode attention in which a shared prefix is read once for all sequences over it.

The queries of a tile are stacked, so that the prefix takes one matrix product in place of one vector product a
sequence. The own tokens of each sequence are attended as in `decode.py`, and both are merged by log-sum-exp (Juravsky
et al., "Hydragen", 2024; Ye et al., "Cascade Inference", FlashInfer, 2024; Ye et al., "ChunkAttention", 2024). Prefixes
may nest, with a level each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import Cascade, PagedBatch, Scoring
from qpdsl.executor.kernels.triton.attention.decode import partial
from qpdsl.executor.kernels.triton.attention.merge import Partials, merge
from qpdsl.executor.kernels.triton.attention.tuning import Tuning, for_cascade, for_decode, multiprocessors, split_count
from qpdsl.executor.kernels.triton.common import attend_range, dot_type, geometry, log_sum, part_of, sunk


@triton.jit(do_not_specialize=["layer", "stride_pages", "splits", "shared", "slots", "least"])
def prefix_kernel(
    query,
    rows,
    scales,
    pages,
    context,
    members,
    tiles,
    means,
    totals,
    layer,
    stride_token,
    stride_head,
    stride_pages,
    splits,
    shared,
    slots,
    least,
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
):
    """A program for each M // FOLD sequences of a tile (axis 0: tile by tile), key head (axis 1) and part (axis 2).

    Writes slot `splits + level * shared + part` of each of its sequences.
    """
    WIDE: tl.constexpr = M // FOLD
    slices = tl.program_id(1) // KV
    head = tl.program_id(1) % KV
    part = tl.program_id(2)
    tile = tiles + tl.program_id(0) * 5
    first = tl.load(tile) + slices * WIDE
    last = tl.load(tile + 1)
    if first >= last:
        return
    begin = tl.load(tile + 2)
    end = tl.load(tile + 3)
    level = tl.load(tile + 4)
    low, top = part_of(begin, end, part, shared, least, N)

    r, d = tl.arange(0, M), tl.arange(0, D_PAD)
    member = first + r // FOLD
    real = (r < WIDE * FOLD) & (member < last)
    sequence = tl.load(members + member, mask=real, other=0).to(tl.int64)
    heads = head * FOLD + r % FOLD
    mask = real[:, None] & (d < D)[None, :]
    q = tl.load(query + (sequence * stride_token + heads * stride_head)[:, None] + d[None, :], mask=mask, other=0.0)
    q = q.to(DOT)
    position = tl.load(context + sequence, mask=real, other=0) - 1
    reader = tl.load(members + first).to(tl.int64)

    # Sinks belong to the first part of a sequence's own tokens.
    high, total = sunk(query, heads, real, False, M, False)
    page_row = pages + reader * stride_pages
    mean, total, high = attend_range(
        q, total, high, rows, scales, page_row, top, page_row, layer, head, low, top, begin, position, scale, softcap,
        ROW, PAGE, KV, D, D_PAD, KIND, DOT, CAPPED, WINDOW, M, N, True, True, False,
    )  # fmt: skip
    at = (sequence * (KV * FOLD) + heads) * slots + splits + level * shared + part
    tl.store(means + at[:, None] * D + d[None, :], mean, mask=mask)
    tl.store(totals + at, log_sum(total, high), mask=real)


def cascade(
    query: torch.Tensor,
    rows: KVRows,
    batch: PagedBatch,
    shared: Cascade,
    layer: int,
    scoring: Scoring,
    out: torch.Tensor,
    tuning: tuple[Tuning, Tuning] | None = None,
) -> None:
    """Writes `out` [B, H, D] for `query` [B, H, D] (last dimension contiguous). Twin: `reference.cascade`.

    `tuning`: for the prefixes, and for the sequences' own tokens.
    """
    fold = query.shape[1] // rows.kv_heads
    above, below = tuning or (for_cascade(rows, fold, shared.width), for_decode(rows, fold))
    processors = multiprocessors(query.device)
    own = split_count(query.shape[0] * rows.kv_heads, shared.suffix, below, processors)
    slices = -(-shared.width // (above.rows // fold))
    grid = (shared.tiles.shape[0], slices * rows.kv_heads)
    parts = Partials.empty(query, own, split_count(grid[0] * grid[1], shared.prefix, above, processors), shared.depth)
    prefix_kernel[(*grid, parts.shared)](
        query,
        rows.data,
        rows.scales,
        batch.pages,
        batch.context,
        shared.members,
        shared.tiles,
        parts.means,
        parts.totals,
        layer,
        query.stride(0),
        query.stride(1),
        batch.pages.stride(0),
        parts.splits,
        parts.shared,
        parts.slots,
        above.least,
        scoring.scale,
        scoring.softcap or 1.0,
        **geometry(rows),
        DOT=dot_type(query),
        CAPPED=scoring.softcap is not None,
        WINDOW=scoring.window or 0,
        FOLD=fold,
        M=above.rows,
        N=above.keys,
        num_warps=above.warps,
        num_stages=above.ahead + 1,
    )
    partial(query, rows, batch, layer, scoring, parts, out, below, shared.start)
    merge(parts, out, shared.levels)
