"""The attention of a step over pages, by what it has: sequences that decode, chunks of prompts, or both.

`query` is [T, H, D], its last dimension contiguous; `out` [T, H, D] is written. Twin of all: `reference.attention`.
"""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.triton.attention import step_attention
from qpdsl.executor.kernels.triton.attention.tuning import (
    Tuning,
    for_decode,
    for_fixed_bits,
    for_mixed,
    for_prefill,
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
    """One query a sequence, whose context is split into parts that run in parallel."""
    tuning = tuning or for_decode(rows, query.shape[1] // rows.kv_heads)
    step_attention.attend(query, rows, batch, layer, scoring, out, tuning, query.shape[0])


def prefill(
    query: torch.Tensor,
    rows: KVRows,
    batch: PagedBatch,
    layer: int,
    scoring: Scoring,
    out: torch.Tensor,
    tuning: Tuning | None = None,
) -> None:
    """Chunks of different lengths, each query over the cached prefix and its own chunk."""
    tuning = tuning or for_prefill(rows, query.shape[1] // rows.kv_heads, batch.longest_query)
    step_attention.attend(query, rows, batch, layer, scoring, out, tuning, 0, 0)


def mixed(
    query: torch.Tensor,
    rows: KVRows,
    batch: PagedBatch,
    layer: int,
    scoring: Scoring,
    out: torch.Tensor,
    tuning: Tuning | None = None,
    deterministic: bool = False,
) -> None:
    """Sequences that decode beside chunks of prompts, in one launch.

    `deterministic`: decoding a token gives the bits of prefilling it, in any batch.
    """
    fold = query.shape[1] // rows.kv_heads
    tuning = tuning or (for_fixed_bits if deterministic else for_mixed)(rows, fold)
    chunks = batch.decodes if batch.decodes < batch.sequences else None
    step_attention.attend(query, rows, batch, layer, scoring, out, tuning, batch.decodes, chunks)
