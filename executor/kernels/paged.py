"""Paged attention on a device, as the model layer calls it: Triton kernels on CUDA, their torch twins elsewhere.

    attend(query, key, value, rows, batch, layer, scoring)        a layer's whole attention; the one to compile over
    store(rows, key, value, slots, layer)                         its parts
    attention(query, rows, batch, layer, scoring)
    decode, prefill, cascade                                      what `attention` chooses between

Queries are [T, H, D], keys and values [T, KV, D], any strides; results are [T, H, D], contiguous, in the query's type.
Nothing here waits for the device. On a CPU the engine attends through `attention.py`, which is faster there than the
twins. Under TRITON_INTERPRET=1 the kernels run everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from qpdsl.executor.kernels import reference
from qpdsl.executor.kernels.metadata import Cascade, PagedBatch, Scoring
from qpdsl.executor.kernels.rows import Kind, Rows

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_KINDS: tuple[Kind, ...] = ("plain", "int8", "fp8")


def store(rows: Rows, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, layer: int) -> None:
    """Writes new keys and values [T, KV, D] of `layer` into their rows, in place; quantizes where rows are.

    `slots` int64 [T]: (page id · page_size + place) of each token, that is its slot of layer 0.
    """
    if _on_device(key):
        from qpdsl.executor.kernels import triton_store

        triton_store.store(rows, key, value, slots, layer)
    else:
        reference.store(rows, key, value, slots, layer)


def decode(query: torch.Tensor, rows: Rows, batch: PagedBatch, layer: int, scoring: Scoring) -> torch.Tensor:
    """Attention of one query a sequence; `query` [B, H, D]."""
    if not _on_device(query):
        return reference.attention(query, rows, batch, layer, scoring)
    from qpdsl.executor.kernels import triton_decode

    query, out = _ready(query)
    triton_decode.decode(query, rows, batch, layer, scoring, out)
    return out


def prefill(
    query: torch.Tensor, rows: Rows, batch: PagedBatch, layer: int, scoring: Scoring, deterministic: bool = False
) -> torch.Tensor:
    """Attention of any number of queries a sequence; `query` [T, H, D].

    `deterministic`: a row's bits do not depend on the batch or on how the prompt was cut.
    """
    if not _on_device(query):
        return reference.attention(query, rows, batch, layer, scoring)
    from qpdsl.executor.kernels import triton_prefill

    query, out = _ready(query)
    triton_prefill.prefill(query, rows, batch, layer, scoring, out, deterministic=deterministic)
    return out


def cascade(query: torch.Tensor, rows: Rows, batch: PagedBatch, layer: int, scoring: Scoring) -> torch.Tensor:
    """`decode` that reads each prefix of `batch.cascade` once. Raises ValueError where the batch has none."""
    if batch.cascade is None:
        raise ValueError("the batch has no cascade")
    if not _on_device(query):
        return reference.cascade(query, rows, batch, batch.cascade, layer, scoring)
    from qpdsl.executor.kernels import triton_cascade

    query, out = _ready(query)
    triton_cascade.cascade(query, rows, batch, batch.cascade, layer, scoring, out)
    return out


def attention(
    query: torch.Tensor, rows: Rows, batch: PagedBatch, layer: int, scoring: Scoring, deterministic: bool = False
) -> torch.Tensor:
    """Attention of a mixed batch [T, H, D]: its decoding sequences by `decode` or `cascade`, the rest by `prefill`.

    `deterministic` sends all through `prefill`: decoding a token and prefilling it then give the same bits.
    """
    if deterministic or batch.decodes == 0:
        return prefill(query, rows, batch, layer, scoring, deterministic)
    if batch.decodes == batch.sequences:
        return (decode if batch.cascade is None else cascade)(query, rows, batch, layer, scoring)
    if not _on_device(query):
        return reference.attention(query, rows, batch, layer, scoring)
    from qpdsl.executor.kernels import triton_cascade, triton_decode, triton_prefill

    query, out = _ready(query)
    count = batch.decodes
    if batch.cascade is None:
        triton_decode.decode(query[:count], rows, batch, layer, scoring, out[:count])
    else:
        triton_cascade.cascade(query[:count], rows, batch, batch.cascade, layer, scoring, out[:count])
    triton_prefill.prefill(query, rows, batch, layer, scoring, out, first=count)
    return out


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rows: Rows,
    batch: PagedBatch,
    layer: int,
    scoring: Scoring,
    deterministic: bool = False,
) -> torch.Tensor:
    """`store`, then `attention`. `torch.compile` takes it as one operation and does not look inside."""
    if not torch.compiler.is_compiling():
        store(rows, key, value, batch.slots, layer)
        return attention(query, rows, batch, layer, scoring, deterministic)
    tensors = [rows.data, rows.scales, batch.pages, batch.context, batch.slots, batch.query_start]
    numbers = [rows.page_size, rows.kv_heads, rows.dim, _KINDS.index(rows.kind)]
    numbers += [batch.decodes, batch.longest, batch.longest_query, layer, int(deterministic), scoring.window or 0]
    shared = batch.cascade
    if shared is not None:
        tensors += [shared.members, shared.tiles, shared.start, shared.levels]
        numbers += [shared.width, shared.depth, shared.prefix, shared.suffix]
    if scoring.sinks is not None:
        tensors.append(scoring.sinks)
    found: torch.Tensor = torch.ops.qpdsl.paged_attend(
        query, key, value, tensors, numbers, scoring.scale, scoring.softcap, shared is not None
    )
    return found


# The rows are written to without a word: declared, the write would make the compiler's functional form copy the whole
# cache or prove that it need not. It is safe because nothing else in a forward reads or writes them, and the result
# keeps each call alive and in its place.
@torch.library.custom_op("qpdsl::paged_attend", mutates_args=())
def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    numbers: Sequence[int],
    scale: float,
    softcap: float | None,
    shares: bool,
) -> torch.Tensor:
    data, scales, pages, context, slots, query_start, *rest = tensors
    page_size, kv_heads, dim, kind, decodes, longest, longest_query, layer, deterministic, window, *sizes = numbers
    shared = None
    if shares:
        members, tiles, start, levels = rest[:4]
        width, depth, prefix, suffix = sizes
        shared = Cascade(members, tiles, start, levels, width, depth, prefix, suffix)
    sinks = rest[-1] if len(rest) % 4 else None
    rows = Rows(data, scales, page_size, kv_heads, dim, _KINDS[kind])
    batch = PagedBatch(pages, context, slots, query_start, decodes, longest, longest_query, shared)
    scoring = Scoring(scale, window or None, softcap, sinks)
    store(rows, key, value, slots, layer)
    return attention(query, rows, batch, layer, scoring, bool(deterministic))


@_attend.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    numbers: Sequence[int],
    scale: float,
    softcap: float | None,
    shares: bool,
) -> torch.Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def _on_device(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda or _INTERPRETED


def _ready(query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The query with its last dimension contiguous, and room for the result."""
    if query.stride(-1) != 1:
        query = query.contiguous()
    return query, torch.empty(query.shape, dtype=query.dtype, device=query.device)
