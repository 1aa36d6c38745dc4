"""Paged attention, as a layer of a model calls it: Triton kernels on CUDA, their torch twins elsewhere.

Keys and values lie in pages of the KV cache, and each sequence reads them through its line of a page table
(PagedAttention: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023).

    attend(heads, rows, batch, layer, scoring)                    a layer's whole attention: `store`, then `attention`
    store(rows, key, value, slots, layer)                         new keys and values into their pages
    attention(query, rows, batch, layer, scoring)                 a mixed batch, in one launch

Contexts of sequences that decode are split into parts that run in parallel (split-KV), and a prefix that they share is
read once for all of them.

Queries are [T, H, D], keys and values [T, KV, D], any strides; results are [T, H, D], contiguous, in the query's type.
Nothing here waits for the device. On a CPU the engine attends in torch over groups of sequences or by compiled code,
which are faster there than the twins. Under TRITON_INTERPRET=1 the kernels run everywhere.
"""

from __future__ import annotations

import os

import torch

from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind, reads_fp8
from qpdsl.executor.kernels.data.paged_batch import Heads, PagedBatch, Scoring
from qpdsl.executor.kernels.plain import reference

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def store(rows: KVRows, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, layer: int) -> None:
    """Writes new keys and values [T, KV, D] of `layer` into their pages, in place; quantizes where the rows are.

    `slots` int64 [T]: page id · page_size + place of each token, which is its slot in layer 0.
    """
    if on_device(key):
        from qpdsl.executor.kernels.triton import stored_numbers as triton_store

        triton_store.store(rows, key, value, slots, layer)
    else:
        reference.store(rows, key, value, slots, layer)


def attention(
    query: torch.Tensor, rows: KVRows, batch: PagedBatch, layer: int, scoring: Scoring, deterministic: bool = False
) -> torch.Tensor:
    """Attention of a mixed batch [T, H, D]: sequences that decode and chunks of prompts, in one launch.

    `deterministic`: decoding a token gives the bits of prefilling it, in any batch. Shared prefixes are then read for
    each sequence.
    """
    if not on_device(query):
        alone = batch.decodes == batch.sequences
        if alone and batch.cascade is not None and not deterministic:
            return reference.cascade(query, rows, batch, batch.cascade, layer, scoring)
        return reference.attention(query, rows, batch, layer, scoring)
    from qpdsl.executor.kernels.triton import cascade as triton_cascade
    from qpdsl.executor.kernels.triton import step_attention

    if query.stride(-1) != 1:
        query = query.contiguous()
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if batch.decodes and batch.cascade is not None and not deterministic:
        triton_cascade.cascade(query, rows, batch, batch.cascade, layer, scoring, out)
    elif len(query):
        step_attention.attend(query, rows, batch, layer, scoring, out, deterministic=deterministic)
    return out


def attend(
    heads: Heads, rows: KVRows, batch: PagedBatch, layer: int, scoring: Scoring, deterministic: bool = False
) -> torch.Tensor:
    """`store`, then `attention`."""
    store(rows, heads.key, heads.value, batch.slots, layer)
    return attention(heads.query, rows, batch, layer, scoring, deterministic)


def unkept(kind: RowKind, device: torch.device) -> str | None:
    """Why the kernels of a device take no rows of a kind, in words; None where they do."""
    if kind == "int4":
        return "there are no kernels for int4 keys and values on a GPU; take fp8"
    if kind == "int8" and device.type == "cuda" and reads_fp8(*torch.cuda.get_device_capability(device)):
        return "this GPU reads fp8 keys and values faster than int8, and they are as small; take fp8"
    return None


def on_device(tensor: torch.Tensor) -> bool:
    """Whether kernels run on the tensor."""
    return tensor.is_cuda or _INTERPRETED
