"""Decode attention over pages, split-KV: one query a sequence, and the context split into parts that run in parallel.

Each part gives a mean and a log-sum-exp (base 2), which a merge joins: Flash-Decoding (Dao, Haziza, Massa and Sizov,
2023). All query heads of a KV head are in one program, so a key is read once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.triton.attention.merge import Partials, merge
from qpdsl.executor.kernels.triton.attention.tuning import Tuning, for_decode, multiprocessors, split_count
from qpdsl.executor.kernels.triton.common import attend_range, dot_type, geometry, log_sum, part_of, sunk


@triton.jit(do_not_specialize=["layer", "stride_pages", "splits", "slots", "least", "stride_places"])
def decode_kernel(
    query,
    rows,
    scales,
    pages,
    context,
    start,
    sinks,
    branches,
    places,
    out,
    means,
    totals,
    layer,
    stride_token,
    stride_head,
    stride_pages,
    stride_places,
    splits,
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
    SINKS: tl.constexpr,
    TREES: tl.constexpr,
    STARTS: tl.constexpr,
    DIRECT: tl.constexpr,
):
    """A program for each KV head (axis 0), sequence (axis 1) and part of the context (axis 2).

    DIRECT: there is one part and nothing to merge, so `out` [B, H, D] is written; else slot `part` of
    `means` float32 [B, H, slots, D] and of `totals` float32 [B, H, slots].
    """
    head, sequence, part = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    length = tl.load(context + sequence)
    begin = length * 0
    if STARTS:
        begin = tl.load(start + sequence)
    if WINDOW > 0:
        begin = tl.maximum(begin, length - WINDOW)
    low, top = part_of(begin, length, part, splits, least, N)

    r, d = tl.arange(0, M), tl.arange(0, D_PAD)
    heads = head * FOLD + r
    real = r < FOLD
    mask = real[:, None] & (d < D)[None, :]
    q = tl.load(query + sequence * stride_token + heads[:, None] * stride_head + d[None, :], mask=mask, other=0.0)
    q = q.to(DOT)

    high, total = sunk(sinks, heads, real, part == 0, M, SINKS)
    page_row = pages + sequence * stride_pages
    place_row = places + sequence * stride_places
    branch = length
    if TREES:
        branch = tl.load(branches + sequence)
    mean, total, high = attend_range(
        q, total, high, rows, scales, page_row, branch, place_row, layer, head, low, top, begin, length, scale, softcap,
        ROW, PAGE, KV, D, D_PAD, KIND, DOT, CAPPED, WINDOW, M, N, False, True, TREES,
    )  # fmt: skip
    line = sequence * (KV * FOLD) + heads
    if DIRECT:
        tl.store(out + line[:, None] * D + d[None, :], mean.to(out.dtype.element_ty), mask=mask)
    else:
        at = line * slots + part
        tl.store(means + at[:, None] * D + d[None, :], mean, mask=mask)
        tl.store(totals + at, log_sum(total, high), mask=real)


def partial(
    query: torch.Tensor,
    rows: KVRows,
    batch: PagedBatch,
    layer: int,
    scoring: Scoring,
    parts: Partials,
    out: torch.Tensor,
    tuning: Tuning,
    start: torch.Tensor | None,
) -> None:
    """Writes the first `parts.splits` slots of `parts` (or `out` where `parts` has one slot) for each query [B, H, D].

    `start` int32 [B]: the first token of each sequence to attend to; None for all.
    """
    fold = query.shape[1] // rows.kv_heads
    decode_kernel[(rows.kv_heads, query.shape[0], parts.splits)](
        query,
        rows.data,
        rows.scales,
        batch.pages,
        batch.context,
        batch.context if start is None else start,
        query if scoring.sinks is None else scoring.sinks,
        batch.context if batch.paths is None else batch.paths.start,
        batch.context if batch.paths is None else batch.paths.places,
        out,
        parts.means,
        parts.totals,
        layer,
        query.stride(0),
        query.stride(1),
        batch.pages.stride(0),
        0 if batch.paths is None else batch.paths.places.stride(0),
        parts.splits,
        parts.slots,
        tuning.least,
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
        STARTS=start is not None,
        DIRECT=parts.slots == 1,
        num_warps=tuning.warps,
        num_stages=tuning.ahead + 1,
    )


def decode(
    query: torch.Tensor,
    rows: KVRows,
    batch: PagedBatch,
    layer: int,
    scoring: Scoring,
    out: torch.Tensor,
    tuning: Tuning | None = None,
) -> None:
    """Writes `out` [B, H, D] for `query` [B, H, D] (last dimension contiguous). Twin: `reference.attention`."""
    tuning = tuning or for_decode(rows, query.shape[1] // rows.kv_heads)
    reach = min(batch.longest, scoring.window + tuning.keys) if scoring.window else batch.longest
    count = split_count(query.shape[0] * rows.kv_heads, reach, tuning, multiprocessors(query.device))
    parts = Partials.empty(query, count)
    partial(query, rows, batch, layer, scoring, parts, out, tuning, None)
    if parts.slots > 1:
        merge(parts, out)
