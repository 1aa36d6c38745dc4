"""The attention kernel of a step: parts of decoding contexts and blocks of chunks, in one launch.

A chunk's block is some neighbouring tokens of one sequence, with the query heads of a KV head stacked, so that a key is
read once for all of them (as in FlashAttention-2, Dao, 2023, over pages). A decoding context is split into parts that
run in parallel, and `merge.py` joins them: Flash-Decoding (Dao, Haziza, Massa and Sizov, 2023). A fixed number of
programs take the parts of all contexts in equal shares, so that contexts of different lengths keep a device busy to the
end, as in FlashInfer (Ye et al., 2025, section 3.3); they count the parts themselves, since a captured graph does not
know the contexts. Parts and blocks alternate in the grid: reading memory and multiplying overlap, as in POD-Attention
(Kamath et al., 2025).

A part has a fixed number of tokens, and blocks of keys begin at multiples of their size in the sequence. A chunk may
fold its parts in the order and with the code of the merge. Keys that a row does not see do not change it. So its bits
depend on its own query and context, not on how a prompt was cut into chunks, on whether a token was decoded, or on
what else is in the batch. One piece of compiled code does both (`Tuning.folded`), as matrix instructions of other
shapes and sums over other numbers of warps may round otherwise.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.triton.attention.merge import Partials, merge
from qpdsl.executor.kernels.triton.attention.online_softmax import (
    attend_range,
    attended,
    fold,
    folded,
    nothing,
    ready,
)
from qpdsl.executor.kernels.triton.attention.partition import block_of, parts_of, share_of
from qpdsl.executor.kernels.triton.attention.tuning import Tuning, multiprocessors, part_tokens, resident
from qpdsl.executor.kernels.triton.common import LAUNCH

# Sequences whose parts a program counts at a time.
_COUNTED = 128


@triton.jit
def compute(
    query,
    rows,
    scales,
    pages,
    context,
    query_start,
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
    decodes,
    chunks,
    sequences,
    workers,
    slots,
    size,
    head,
    decoding,
    number,
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
    COUNTED: tl.constexpr,
    DECODES: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """What program `number` of its kind does for one KV head: a share of the parts where `decoding`, else a block.

    DECODES, CHUNKS: which kinds this piece of code is for. With both, chunks fold their parts.
    """
    TOKENS: tl.constexpr = M // FOLD
    BOTH: tl.constexpr = DECODES and CHUNKS
    todo, sequence, item = 1, 0, 0
    if BOTH:
        if decoding:
            todo, sequence, item = share_of(context, start, decodes, size, number, workers, STARTS, WINDOW, COUNTED)
        else:
            sequence, item = block_of(query_start, chunks, sequences, number, TOKENS)
    elif DECODES:
        todo, sequence, item = share_of(context, start, decodes, size, number, workers, STARTS, WINDOW, COUNTED)
    else:
        sequence, item = block_of(query_start, chunks, sequences, number, TOKENS)

    r, d = tl.arange(0, M), tl.arange(0, D_PAD)
    heads = head * FOLD + r % FOLD
    for _ in range(todo):
        length = tl.load(context + sequence)
        parts = 1
        if DECODES:
            begin, first, parts = parts_of(length, start, sequence, size, STARTS, WINDOW)
            origin, count, block = sequence, 1, 0
            bottom = tl.maximum((first + item) * size, begin // N * N)
            top = tl.minimum((first + item + 1) * size, length)
        if not decoding:
            parts = 1
            origin = tl.load(query_start + sequence)
            count = tl.load(query_start + sequence + 1) - origin
            block = item
            begin = 0
            top = tl.minimum(length - count + (block + 1) * TOKENS, length)
            # Of a block behind the last there is nothing to attend to, and nothing is written.
            top = tl.where(block * TOKENS < count, top, 0)
            bottom = 0
            if WINDOW > 0:
                bottom = tl.maximum(length - count + block * TOKENS - WINDOW + 1, 0) // N * N
        place = block * TOKENS + r // FOLD
        real = (r < TOKENS * FOLD) & (place < count)
        mask = real[:, None] & (d < D)[None, :]
        token = (origin + place).to(tl.int64)
        q = tl.load(query + (token * stride_token + heads * stride_head)[:, None] + d[None, :], mask=mask, other=0.0)
        q, factor = ready(q, scale, KIND, DOT)
        position = length - count + place
        page_row = pages + sequence.to(tl.int64) * stride_pages
        place_row = places + sequence.to(tl.int64) * stride_places
        branch = length
        if TREES:
            branch = tl.load(branches + sequence)

        whole = parts == 1
        if STARTS:
            whole = not decoding
        high, weight, mean = nothing(sinks, heads, real, whole, M, D_PAD, SINKS)
        if BOTH:
            for part in range(bottom // size * size, top, size):
                one, total = attend_range(
                    q, rows, scales, page_row, branch, place_row, layer, head, tl.maximum(part, bottom),
                    tl.minimum(part + size, top), begin, position, factor, softcap,
                    ROW, PAGE, KV, D, D_PAD, KIND, DOT, CAPPED, WINDOW, M, N, True, STARTS, TREES,
                )  # fmt: skip
                high, weight, mean = fold(high, weight, mean, one, total)
        else:
            one, total = attend_range(
                q, rows, scales, page_row, branch, place_row, layer, head, bottom, top, begin, position, factor,
                softcap, ROW, PAGE, KV, D, D_PAD, KIND, DOT, CAPPED, WINDOW, M, N, CHUNKS, DECODES, TREES,
            )  # fmt: skip
            high, weight, mean = fold(high, weight, mean, one, total)
        line = token * (KV * FOLD) + heads
        if whole:
            result = folded(weight, mean).to(out.dtype.element_ty)
            tl.store(out + line[:, None] * D + d[None, :], result, mask=mask)
        elif DECODES:
            # One part in an empty state: its mean as it is, and the maximum is its log-sum-exp.
            at = line * slots + item
            tl.store(means + at[:, None] * D + d[None, :], mean, mask=mask)
            tl.store(totals + at, high, mask=real)
        if DECODES:
            item += 1
            sequence = tl.where(item == parts, sequence + 1, sequence)
            item = tl.where(item == parts, 0, item)


@triton.jit(
    do_not_specialize=[
        "layer", "stride_pages", "stride_places", "decodes", "chunks", "sequences", "workers", "blocks", "slots",
        "size",
    ]
)  # fmt: skip
def attention_kernel(
    query,
    rows,
    scales,
    pages,
    context,
    query_start,
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
    decodes,
    chunks,
    sequences,
    workers,
    blocks,
    slots,
    size,
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
    SMALL: tl.constexpr,
    FOLDED: tl.constexpr,
    N: tl.constexpr,
    SINKS: tl.constexpr,
    TREES: tl.constexpr,
    STARTS: tl.constexpr,
    COUNTED: tl.constexpr,
    DECODES: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """A program for each KV head of each worker and of each block of a chunk; both kinds are spread over the grid.

    The first `decodes` sequences decode, and those from `chunks` to `sequences` have chunks, whose last blocks come
    first: they have most to do. A part of several writes its slot of `means` float32 [B, H, slots, D] and of `totals`
    float32 [B, H, slots], and a part alone `out`, unless a shared prefix lies before it (STARTS).
    """
    head = tl.program_id(0) % KV
    number = tl.program_id(0) // KV
    worker = (number.to(tl.int64) * workers // (workers + blocks)).to(tl.int32)
    after = ((number + 1).to(tl.int64) * workers // (workers + blocks)).to(tl.int32)
    decoding = after > worker
    number = tl.where(decoding, worker, blocks - 1 - (number - worker))
    if FOLDED:
        compute(
            query, rows, scales, pages, context, query_start, start, sinks, branches, places, out, means, totals,
            layer, stride_token, stride_head, stride_pages, stride_places, decodes, chunks, sequences, workers, slots,
            size, head, decoding, number, scale, softcap, ROW, PAGE, KV, D, D_PAD, KIND, DOT, CAPPED, WINDOW, FOLD,
            M, N, SINKS, TREES, STARTS, COUNTED, True, True,
        )  # fmt: skip
    elif DECODES and decoding:
        compute(
            query, rows, scales, pages, context, query_start, start, sinks, branches, places, out, means, totals,
            layer, stride_token, stride_head, stride_pages, stride_places, decodes, chunks, sequences, workers, slots,
            size, head, True, number, scale, softcap, ROW, PAGE, KV, D, D_PAD, KIND, DOT, CAPPED, WINDOW, FOLD,
            SMALL, N, SINKS, TREES, STARTS, COUNTED, True, False,
        )  # fmt: skip
    elif CHUNKS:
        compute(
            query, rows, scales, pages, context, query_start, start, sinks, branches, places, out, means, totals,
            layer, stride_token, stride_head, stride_pages, stride_places, decodes, chunks, sequences, workers, slots,
            size, head, False, number, scale, softcap, ROW, PAGE, KV, D, D_PAD, KIND, DOT, CAPPED, WINDOW, FOLD,
            M, N, SINKS, TREES, STARTS, COUNTED, False, True,
        )  # fmt: skip


def launch(
    query: torch.Tensor,
    rows: KVRows,
    batch: PagedBatch,
    layer: int,
    scoring: Scoring,
    out: torch.Tensor,
    tuning: Tuning,
    parts: Partials,
    decodes: int,
    chunks: int | None = None,
    start: torch.Tensor | None = None,
) -> None:
    """Writes `parts` of the first `decodes` sequences, or `out` where they have one, and `out` of those from `chunks`.

    `query` [T, H, D], last dimension contiguous; `out` [T, H, D], contiguous. The sequences before `chunks` have one
    token each. `start` int32 [B]: the first token of each decoding sequence to attend to, before which a shared prefix
    lies; None without.
    """
    fold = query.shape[1] // rows.kv_heads
    workers = blocks = 0
    if decodes:
        # Beside chunks, one program of each kind runs on a multiprocessor at a time.
        room = multiprocessors(query.device) * (resident(rows, tuning) if chunks is None else 1)
        workers = max(1, min(room // rows.kv_heads, decodes * parts.splits))
    if chunks is not None:
        blocks = (query.shape[0] - chunks) // (tuning.rows // fold) + batch.sequences - chunks
    attention_kernel[((workers + blocks) * rows.kv_heads,)](
        query,
        rows.data,
        rows.scales,
        batch.pages,
        batch.context,
        batch.query_start,
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
        decodes,
        chunks or 0,
        batch.sequences,
        workers,
        blocks,
        parts.slots,
        parts.size,
        scoring.scale,
        scoring.softcap or 1.0,
        **attended(query, rows),
        CAPPED=scoring.softcap is not None,
        WINDOW=scoring.window or 0,
        FOLD=fold,
        M=tuning.rows,
        SMALL=tuning.small,
        FOLDED=tuning.folded,
        N=tuning.keys,
        SINKS=scoring.sinks is not None,
        TREES=batch.paths is not None,
        STARTS=start is not None,
        COUNTED=_COUNTED,
        DECODES=tuning.folded or decodes > 0,
        CHUNKS=tuning.folded or chunks is not None,
        num_warps=tuning.warps,
        num_stages=tuning.ahead + 1,
        **LAUNCH,
    )


def own_parts(query: torch.Tensor, rows: KVRows, longest: int, scoring: Scoring, tuning: Tuning) -> tuple[int, int]:
    """The tokens of a part, and how many parts have contexts of up to `longest` tokens, for queries [B, H, D]."""
    reach = longest if scoring.window is None else min(longest, scoring.window)
    room = multiprocessors(query.device) * resident(rows, tuning)
    size = part_tokens(tuning, query.shape[0], query.shape[0] * rows.kv_heads, reach, room)
    # A window begins anywhere in a part.
    return size, max(1, -(-reach // size)) + (reach < longest)


def attend(
    query: torch.Tensor,
    rows: KVRows,
    batch: PagedBatch,
    layer: int,
    scoring: Scoring,
    out: torch.Tensor,
    tuning: Tuning,
    decodes: int,
    chunks: int | None = None,
) -> None:
    """`launch`, with room for the parts of decoding sequences, and then `merge` where one may have several."""
    decoding = query[:decodes]
    parts = Partials.empty(decoding, *own_parts(decoding, rows, batch.longest if decodes else 1, scoring, tuning))
    launch(query, rows, batch, layer, scoring, out, tuning, parts, decodes, chunks)
    if parts.slots > 1:
        merge(parts, batch, scoring, out[:decodes])
