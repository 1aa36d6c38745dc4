"""Cascade attention: decode attention in which a shared prefix is read once for all sequences over it.

The queries of a tile are stacked, so that the prefix takes one matrix product in place of one vector product a
sequence. The own tokens of each sequence are attended as in `step_attention.py`, and both are merged by log-sum-exp
(Juravsky et al., "Hydragen", 2024; Ye et al., "Cascade Inference", FlashInfer, 2024; Ye et al., "ChunkAttention",
2024). Prefixes may nest, with a level each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, PrefixCascade, Scoring
from qpdsl.executor.kernels.triton import step_attention
from qpdsl.executor.kernels.triton.common import LAUNCH, Strided
from qpdsl.executor.kernels.triton.merge import Partials, merge
from qpdsl.executor.kernels.triton.online_softmax import attend_range, attended, ready
from qpdsl.executor.kernels.triton.tuning import (
    Tile,
    Tuning,
    for_cascade,
    for_decode,
    for_mixed,
    multiprocessors,
    part_tokens,
    resident,
)


@triton.jit(do_not_specialize=["layer", "stride_pages", "splits", "shared", "slots", "size"])
def prefix_kernel(
    query, rows, batch, shared_ranges, scoring, tile, parts_out, layer, stride_pages, splits, shared, slots, size
):
    """A program for each M // FOLD sequences of a tile (axis 0: tile by tile), key head (axis 1) and part (axis 2).

    Writes slot `splits + level * shared + part` of each of its sequences.
    """
    FOLD: tl.constexpr = tile.FOLD
    M: tl.constexpr = tile.M
    N: tl.constexpr = tile.N
    WIDE: tl.constexpr = M // FOLD
    D: tl.constexpr = rows.D
    pages, context = batch
    members, tiles = shared_ranges
    slices = tl.program_id(1) // rows.KV
    head = tl.program_id(1) % rows.KV
    part = tl.program_id(2)
    found = tiles + tl.program_id(0) * 5
    first = tl.load(found) + slices * WIDE
    last = tl.load(found + 1)
    if first >= last:
        return
    begin = tl.load(found + 2)
    end = tl.load(found + 3)
    level = tl.load(found + 4)
    # Parts begin on block borders; the first may begin before the range, where no token is visible.
    low = begin // N * N + part * size
    top = tl.minimum(low + size, end)

    r, d = tl.arange(0, M), tl.arange(0, rows.D_PAD)
    member = first + r // FOLD
    real = (r < WIDE * FOLD) & (member < last)
    sequence = tl.load(members + member, mask=real, other=0).to(tl.int64)
    heads = head * FOLD + r % FOLD
    mask = real[:, None] & (d < D)[None, :]
    own = query.data + (sequence * query.token + heads * query.head)[:, None] + d[None, :]
    queries = ready(tl.load(own, mask=mask, other=0.0), scoring.scale, rows.KIND, rows.DOT)
    position = tl.load(context + sequence, mask=real, other=0) - 1
    reader = tl.load(members + first).to(tl.int64)

    page_row = pages + reader * stride_pages
    line = (page_row, None, None)
    mean, total = attend_range(queries, rows, scoring, tile, line, layer, head, low, top, begin, position, True, True)
    at = (sequence * (rows.KV * FOLD) + heads) * slots + splits + level * shared + part
    tl.store(parts_out[0] + at[:, None] * D + d[None, :], mean, mask=mask)
    tl.store(parts_out[1] + at, total, mask=real)


def cascade(
    query: torch.Tensor,
    rows: KVRows,
    batch: PagedBatch,
    shared: PrefixCascade,
    layer: int,
    scoring: Scoring,
    out: torch.Tensor,
    tuning: tuple[Tuning, Tuning] | None = None,
) -> None:
    """Writes `out` [T, H, D] for `query` [T, H, D] (last dimension contiguous). Twin: `reference.cascade`.

    The first `batch.decodes` sequences decode. Where there are queries of others, their chunks are computed beside the
    own tokens of those that decode. `tuning`: for the prefixes, and for the rest.
    """
    fold = query.shape[1] // rows.kv_heads
    chunks = step_attention.chunks_from(query, batch)
    above = for_cascade(rows, fold, shared.width)
    below = for_decode(rows, fold) if chunks is None else for_mixed(rows, fold)
    if tuning is not None:
        above, below = tuning
    decoding = query[: batch.decodes]
    own, splits = step_attention.own_parts(decoding, rows, shared.suffix, Scoring(1.0), below)
    slices = -(-shared.width // (above.rows // fold))
    grid = (shared.tiles.shape[0], slices * rows.kv_heads)
    room = multiprocessors(query.device) * resident(rows, above)
    size = part_tokens(above, decoding.shape[0] * shared.depth, grid[0] * grid[1], shared.prefix, room)
    # Where a sequence's own tokens begin, and where a shared range does, parts may begin before them.
    parts = Partials.empty(decoding, own, splits + 1, -(-shared.prefix // size) + 1, shared.depth)
    prefix_kernel[(*grid, parts.shared)](
        Strided.of(query),
        attended(query, rows),
        (batch.pages, batch.context),
        (shared.members, shared.tiles),
        scoring,
        Tile.of(above, fold, scoring.window),
        (parts.means, parts.totals),
        layer,
        batch.pages.stride(0),
        parts.splits,
        parts.shared,
        parts.slots,
        size,
        num_warps=above.warps,
        num_stages=above.ahead + 1,
        **LAUNCH,
    )
    step_attention.launch(query, rows, batch, layer, scoring, out, below, parts, chunks, shared.start)
    merge(parts, batch, scoring, out[: batch.decodes], cascade=True)
