"""The attention kernel of a step: parts of decoding contexts and blocks of chunks, in one launch.

`attend` launches it for what a step has. Twin of all: `reference.attention`. A chunk's block is
some neighbouring tokens of one sequence, with the query heads of a KV head stacked, so that a key is read once for all
of them (as in FlashAttention-2, Dao, 2023, over pages). A decoding context is split into parts that run in parallel,
and `merge.py` joins them: Flash-Decoding (Dao, Haziza, Massa and Sizov, 2023). A fixed number of programs take the
parts of all contexts in equal shares, so that contexts of different lengths keep a device busy to the end, as in
FlashInfer (Ye et al., 2025, section 3.3); they count the parts themselves, since a captured graph does not know the
contexts. Parts and blocks alternate in the grid: reading memory and multiplying overlap, as in POD-Attention (Kamath et
al., 2025).

A part has a fixed number of tokens, and blocks of keys begin at multiples of their size in the sequence. A chunk may
fold its parts in the order and with the code of the merge. Keys that a row does not see do not change it. So its bits
depend on its own query and context, not on how a prompt was cut into chunks, on whether a token was decoded, or on
what else is in the batch. One piece of compiled code does both (`Tuning.folded`), as matrix instructions of other
shapes and sums over other numbers of warps may round otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.triton.common import LAUNCH, Strided
from qpdsl.executor.kernels.triton.merge import Partials, merge
from qpdsl.executor.kernels.triton.online_softmax import (
    attend_range,
    attended,
    fold,
    folded,
    nothing,
    ready,
)
from qpdsl.executor.kernels.triton.tuning import (
    Tile,
    Tuning,
    block_of,
    for_decode,
    for_fixed_bits,
    for_mixed,
    for_prefill,
    multiprocessors,
    part_tokens,
    parts_of,
    resident,
    share_of,
)

# Sequences whose parts a program counts at a time.
_COUNTED = 128


class Sequences(NamedTuple):
    """Those of a step, as its kernel reads them: what a `PagedBatch` has, and what only some steps have or None.

    `start` int32 [B]: the first token of each decoding sequence to attend to. `branches`, `places`: see `Paths`.
    """

    pages: torch.Tensor
    context: torch.Tensor
    query_start: torch.Tensor
    start: torch.Tensor | None
    branches: torch.Tensor | None
    places: torch.Tensor | None


@triton.jit
def compute(
    query,
    rows,
    batch,
    scoring,
    tile,
    out,
    parts_out,
    numbers,
    head,
    decoding,
    number,
    M: tl.constexpr,
    DECODES: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """What program `number` of its kind does for one KV head: a share of the parts where `decoding`, else a block.

    DECODES, CHUNKS: which kinds this piece of code is for. With both, chunks fold their parts.
    """
    layer, stride_pages, stride_places, decodes, chunks, sequences, workers, slots, size = numbers
    FOLD: tl.constexpr = tile.FOLD
    N: tl.constexpr = tile.N
    WINDOW: tl.constexpr = tile.WINDOW
    TOKENS: tl.constexpr = M // FOLD
    BOTH: tl.constexpr = DECODES and CHUNKS
    D: tl.constexpr = rows.D
    D_PAD: tl.constexpr = rows.D_PAD
    context, start = batch.context, batch.start
    todo, sequence, item = 1, 0, 0
    if CHUNKS and not decoding:
        sequence, item = block_of(batch.query_start, chunks, sequences, number, TOKENS)
    else:
        todo, sequence, item = share_of(context, start, decodes, size, number, workers, WINDOW, tile.COUNTED)

    r, d = tl.arange(0, M), tl.arange(0, D_PAD)
    heads = head * FOLD + r % FOLD
    for _ in range(todo):
        length = tl.load(context + sequence)
        parts = 1
        if DECODES:
            begin, first, parts = parts_of(length, start, sequence, size, WINDOW)
            origin, count, block = sequence, 1, 0
            bottom = tl.maximum((first + item) * size, begin // N * N)
            top = tl.minimum((first + item + 1) * size, length)
        if not decoding:
            parts = 1
            origin = tl.load(batch.query_start + sequence)
            count = tl.load(batch.query_start + sequence + 1) - origin
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
        own = query.data + (token * query.token + heads * query.head)[:, None] + d[None, :]
        queries = ready(tl.load(own, mask=mask, other=0.0), scoring.scale, rows.KIND, rows.DOT)
        position = length - count + place
        page_row = batch.pages + sequence.to(tl.int64) * stride_pages
        if batch.places is not None:
            where = (
                page_row,
                tl.load(batch.branches + sequence),
                batch.places + sequence.to(tl.int64) * stride_places,
            )
        else:
            where = (page_row, None, None)

        whole = parts == 1
        if start is not None:
            whole = not decoding
        high, weight, mean = nothing(scoring.sinks, heads, real, whole, M, D_PAD)
        if BOTH:
            for part in range(bottom // size * size, top, size):
                low, end = tl.maximum(part, bottom), tl.minimum(part + size, top)
                one, total = attend_range(
                    queries, rows, scoring, tile, where, layer, head, low, end, begin, position, True, start is not None
                )
                high, weight, mean = fold(high, weight, mean, one, total)
        else:
            one, total = attend_range(
                queries, rows, scoring, tile, where, layer, head, bottom, top, begin, position, CHUNKS, DECODES
            )
            high, weight, mean = fold(high, weight, mean, one, total)
        line = token * (rows.KV * FOLD) + heads
        if whole:
            result = folded(weight, mean).to(out.dtype.element_ty)
            tl.store(out + line[:, None] * D + d[None, :], result, mask=mask)
        elif DECODES:
            # One part in an empty state: its mean as it is, and the maximum is its log-sum-exp.
            at = line * slots + item
            tl.store(parts_out[0] + at[:, None] * D + d[None, :], mean, mask=mask)
            tl.store(parts_out[1] + at, high, mask=real)
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
    batch,
    scoring,
    tile,
    out,
    parts_out,
    layer,
    stride_pages,
    stride_places,
    decodes,
    chunks,
    sequences,
    workers,
    blocks,
    slots,
    size,
    DECODES: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """A program for each KV head of each worker and of each block of a chunk; both kinds are spread over the grid.

    The first `decodes` sequences decode, and those from `chunks` to `sequences` have chunks, whose last blocks come
    first: they have most to do. A part of several writes its slot of `parts_out`, means float32 [B, H, slots, D] and
    log-sum-exps float32 [B, H, slots], and a part alone `out`, unless a shared prefix lies before it.
    """
    head = tl.program_id(0) % rows.KV
    number = tl.program_id(0) // rows.KV
    worker = (number.to(tl.int64) * workers // (workers + blocks)).to(tl.int32)
    after = ((number + 1).to(tl.int64) * workers // (workers + blocks)).to(tl.int32)
    decoding = after > worker
    number = tl.where(decoding, worker, blocks - 1 - (number - worker))
    numbers = (layer, stride_pages, stride_places, decodes, chunks, sequences, workers, slots, size)
    if tile.FOLDED:
        compute(query, rows, batch, scoring, tile, out, parts_out, numbers, head, decoding, number, tile.M, True, True)
    elif DECODES and decoding:
        compute(query, rows, batch, scoring, tile, out, parts_out, numbers, head, True, number, tile.SMALL, True, False)
    elif CHUNKS:
        compute(query, rows, batch, scoring, tile, out, parts_out, numbers, head, False, number, tile.M, False, True)


def launch(
    query: torch.Tensor,
    rows: KVRows,
    batch: PagedBatch,
    layer: int,
    scoring: Scoring,
    out: torch.Tensor,
    tuning: Tuning,
    parts: Partials,
    chunks: int | None,
    start: torch.Tensor | None = None,
) -> None:
    """Writes `parts` of the sequences that decode, or `out` where they have one, and `out` of those from `chunks` on.

    `query` [T, H, D], last dimension contiguous; `out` [T, H, D], contiguous. The sequences before `chunks` have one
    token each. `start` int32 [B]: the first token of each decoding sequence to attend to, before which a shared prefix
    lies; None without.
    """
    fold, decodes = query.shape[1] // rows.kv_heads, batch.decodes
    workers = blocks = 0
    if decodes:
        # Beside chunks, one program of each kind runs on a multiprocessor at a time.
        room = multiprocessors(query.device) * (resident(rows, tuning) if chunks is None else 1)
        workers = max(1, min(room // rows.kv_heads, decodes * parts.splits))
    if chunks is not None:
        blocks = (query.shape[0] - chunks) // (tuning.rows // fold) + batch.sequences - chunks
    paths = batch.paths
    trees = (None, None) if paths is None else (paths.start, paths.places)
    attention_kernel[((workers + blocks) * rows.kv_heads,)](
        Strided.of(query),
        attended(query, rows),
        Sequences(batch.pages, batch.context, batch.query_start, start, *trees),
        scoring,
        Tile.of(tuning, fold, scoring.window, _COUNTED),
        out,
        (parts.means, parts.totals),
        layer,
        batch.pages.stride(0),
        0 if paths is None else paths.places.stride(0),
        decodes,
        chunks or 0,
        batch.sequences,
        workers,
        blocks,
        parts.slots,
        parts.size,
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


def chunks_from(query: torch.Tensor, batch: PagedBatch) -> int | None:
    """The first sequence with a chunk, behind those that decode; None where no query [T, H, D] is of one."""
    return batch.decodes if batch.decodes < min(batch.sequences, query.shape[0]) else None


def attend(
    query: torch.Tensor,
    rows: KVRows,
    batch: PagedBatch,
    layer: int,
    scoring: Scoring,
    out: torch.Tensor,
    tuning: Tuning | None = None,
    deterministic: bool = False,
) -> None:
    """Writes `out` [T, H, D] for the queries of sequences that decode, whose contexts are split, and of chunks.

    `launch`, with room for the parts of decoding sequences, and then `merge` where one may have several. Chunks may
    have no queries here. `deterministic`: decoding a token gives the bits of prefilling it, in any batch.
    """
    fold, decodes, chunks = query.shape[1] // rows.kv_heads, batch.decodes, chunks_from(query, batch)
    if tuning is None and deterministic:
        tuning = for_fixed_bits(rows, fold)
    elif tuning is None and chunks is None:
        tuning = for_decode(rows, fold)
    elif tuning is None:
        tuning = for_mixed(rows, fold) if decodes else for_prefill(rows, fold, batch.longest_query)
    decoding = query[:decodes]
    parts = Partials.empty(decoding, *own_parts(decoding, rows, batch.longest if decodes else 1, scoring, tuning))
    launch(query, rows, batch, layer, scoring, out, tuning, parts, chunks)
    if parts.slots > 1:
        merge(parts, batch, scoring, out[:decodes])
