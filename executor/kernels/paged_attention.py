"""Paged attention on a device, as the model layer calls it: Triton kernels on CUDA, their torch twins elsewhere.

    attend(query, key, value, rows, batch, layer, scoring)        a layer's whole attention
    store(rows, key, value, slots, layer)                         its parts
    attention(query, rows, batch, layer, scoring)
    decode, prefill, cascade                                      what `attention` chooses between

Queries are [T, H, D], keys and values [T, KV, D], any strides; results are [T, H, D], contiguous, in the query's type.
Nothing here waits for the device. On a CPU the engine attends through `attention.py`, which is faster there than the
twins. Under TRITON_INTERPRET=1 the kernels run everywhere.
"""

from __future__ import annotations

import os

import torch

from qpdsl.executor.kernels.data.kv_rows import Rows
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.plain import reference

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def store(rows: Rows, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, layer: int) -> None:
    """Writes new keys and values [T, KV, D] of `layer` into their rows, in place; quantizes where rows are.

    `slots` int64 [T]: (page id · page_size + place) of each token, that is its slot of layer 0.
    """
    if on_device(key):
        from qpdsl.executor.kernels.triton import store as triton_store

        triton_store.store(rows, key, value, slots, layer)
    else:
        reference.store(rows, key, value, slots, layer)


def decode(query: torch.Tensor, rows: Rows, batch: PagedBatch, layer: int, scoring: Scoring) -> torch.Tensor:
    """Attention of one query a sequence; `query` [B, H, D]."""
    if not on_device(query):
        return reference.attention(query, rows, batch, layer, scoring)
    from qpdsl.executor.kernels.triton import decode as triton_decode

    query, out = _ready(query)
    triton_decode.decode(query, rows, batch, layer, scoring, out)
    return out


def prefill(
    query: torch.Tensor, rows: Rows, batch: PagedBatch, layer: int, scoring: Scoring, deterministic: bool = False
) -> torch.Tensor:
    """Attention of any number of queries a sequence; `query` [T, H, D].

    `deterministic`: a row's bits do not depend on the batch or on how the prompt was cut.
    """
    if not on_device(query):
        return reference.attention(query, rows, batch, layer, scoring)
    from qpdsl.executor.kernels.triton import prefill as triton_prefill

    query, out = _ready(query)
    triton_prefill.prefill(query, rows, batch, layer, scoring, out, deterministic=deterministic)
    return out


def cascade(query: torch.Tensor, rows: Rows, batch: PagedBatch, layer: int, scoring: Scoring) -> torch.Tensor:
    """`decode` that reads each prefix of `batch.cascade` once. Raises ValueError where the batch has none."""
    if batch.cascade is None:
        raise ValueError("the batch has no cascade")
    if not on_device(query):
        return reference.cascade(query, rows, batch, batch.cascade, layer, scoring)
    from qpdsl.executor.kernels.triton import cascade as triton_cascade

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
    if not on_device(query):
        return reference.attention(query, rows, batch, layer, scoring)
    from qpdsl.executor.kernels.triton import cascade as triton_cascade
    from qpdsl.executor.kernels.triton import decode as triton_decode
    from qpdsl.executor.kernels.triton import prefill as triton_prefill

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
    """`store`, then `attention`. For compiled layers there is `packed.attend`."""
    store(rows, key, value, batch.slots, layer)
    return attention(query, rows, batch, layer, scoring, deterministic)


def on_device(tensor: torch.Tensor) -> bool:
    """True where kernels run on what is in the tensor."""
    return tensor.is_cuda or _INTERPRETED


def _ready(query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The query with its last dimension contiguous, and room for the result."""
    if query.stride(-1) != 1:
        query = query.contiguous()
    return query, torch.empty(query.shape, dtype=query.dtype, device=query.device)
