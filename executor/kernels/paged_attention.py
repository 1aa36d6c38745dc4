"""Paged attention, as a layer of a model calls it: Triton kernels on CUDA, their torch twins elsewhere.

Keys and values lie in pages of the KV cache, and each sequence reads them through its line of a page table
(PagedAttention: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023).

    attend(query, key, value, rows, batch, layer, scoring)        a layer's whole attention: `store`, then `attention`
    store(rows, key, value, slots, layer)                         new keys and values into their pages
    attention(query, rows, batch, layer, scoring)                 a mixed batch, in one launch
    decode        one query a sequence; the context is split into parts that run in parallel (split-KV)
    cascade       `decode` that reads a shared prefix once for all sequences over it
    prefill       any number of queries a sequence

Queries are [T, H, D], keys and values [T, KV, D], any strides; results are [T, H, D], contiguous, in the query's type.
Nothing here waits for the device. On a CPU the engine attends through `plain/grouped_attention.py` or compiled code,
which are faster there than the twins. Under TRITON_INTERPRET=1 the kernels run everywhere.
"""

from __future__ import annotations

import os

import torch

from qpdsl.executor.kernels import flash_prefill
from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.plain import reference

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def store(rows: KVRows, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, layer: int) -> None:
    """Writes new keys and values [T, KV, D] of `layer` into their pages, in place; quantizes where the rows are.

    `slots` int64 [T]: page id · page_size + place of each token, which is its slot in layer 0.
    """
    if on_device(key):
        from qpdsl.executor.kernels.triton.attention import store as triton_store

        triton_store.store(rows, key, value, slots, layer)
    else:
        reference.store(rows, key, value, slots, layer)


def decode(query: torch.Tensor, rows: KVRows, batch: PagedBatch, layer: int, scoring: Scoring) -> torch.Tensor:
    """Attention of one query a sequence: `query` [B, H, D] to [B, H, D]."""
    if not on_device(query):
        return reference.attention(query, rows, batch, layer, scoring)
    from qpdsl.executor.kernels.triton.attention import launches

    query, out = _ready(query)
    launches.decode(query, rows, batch, layer, scoring, out)
    return out


def prefill(query: torch.Tensor, rows: KVRows, batch: PagedBatch, layer: int, scoring: Scoring) -> torch.Tensor:
    """Attention of any number of queries a sequence: `query` [T, H, D] to [T, H, D]."""
    if not on_device(query):
        return reference.attention(query, rows, batch, layer, scoring)
    from qpdsl.executor.kernels.triton.attention import launches

    query, out = _ready(query)
    launches.prefill(query, rows, batch, layer, scoring, out)
    return out


def cascade(query: torch.Tensor, rows: KVRows, batch: PagedBatch, layer: int, scoring: Scoring) -> torch.Tensor:
    """`decode` that reads each shared prefix once: `query` [B, H, D] to [B, H, D].

    Raises ValueError where the batch has no cascade.
    """
    if batch.cascade is None:
        raise ValueError("the batch has no cascade")
    if not on_device(query):
        return reference.cascade(query, rows, batch, batch.cascade, layer, scoring)
    from qpdsl.executor.kernels.triton.attention import cascade as triton_cascade

    query, out = _ready(query)
    triton_cascade.cascade(query, rows, batch, batch.cascade, layer, scoring, out)
    return out


def attention(
    query: torch.Tensor, rows: KVRows, batch: PagedBatch, layer: int, scoring: Scoring, deterministic: bool = False
) -> torch.Tensor:
    """Attention of a mixed batch [T, H, D]: sequences that decode and chunks of prompts, in one launch.

    Many tokens in chunks are left to FlashAttention-3 where that fits (`flash_prefill.py`). `deterministic`: decoding a
    token gives the bits of prefilling it, in any batch. Shared prefixes are then read for each sequence.
    """
    if not on_device(query):
        alone = batch.decodes == batch.sequences
        if alone and batch.cascade is not None and not deterministic:
            return reference.cascade(query, rows, batch, batch.cascade, layer, scoring)
        return reference.attention(query, rows, batch, layer, scoring)
    from qpdsl.executor.kernels.triton.attention import cascade as triton_cascade
    from qpdsl.executor.kernels.triton.attention import launches

    query, out = _ready(query)
    if deterministic:
        launches.mixed(query, rows, batch, layer, scoring, out, deterministic=True)
        return out
    count = batch.decodes
    chunks = count < batch.sequences
    if chunks and flash_prefill.refusal(query, rows, batch, scoring) is None:
        out = flash_prefill.prefill(query, rows, batch, layer, scoring)
        query, chunks = query[:count], False
    if count == 0 and chunks:
        launches.prefill(query, rows, batch, layer, scoring, out)
    elif count and batch.cascade is not None:
        triton_cascade.cascade(query, rows, batch, batch.cascade, layer, scoring, out)
    elif chunks:
        launches.mixed(query, rows, batch, layer, scoring, out)
    elif count:
        launches.decode(query[:count], rows, batch, layer, scoring, out[:count])
    return out


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rows: KVRows,
    batch: PagedBatch,
    layer: int,
    scoring: Scoring,
    deterministic: bool = False,
) -> torch.Tensor:
    """`store`, then `attention`. For compiled layers there is `packed.attend`."""
    store(rows, key, value, batch.slots, layer)
    return attention(query, rows, batch, layer, scoring, deterministic)


def on_device(tensor: torch.Tensor) -> bool:
    """Whether kernels run on the tensor."""
    return tensor.is_cuda or _INTERPRETED


def _ready(query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The query with its last dimension contiguous, and an empty tensor for the result."""
    if query.stride(-1) != 1:
        query = query.contiguous()
    return query, torch.empty(query.shape, dtype=query.dtype, device=query.device)
