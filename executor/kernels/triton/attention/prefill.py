"""Prefill attention over pages: chunks of different lengths, each query over the cached prefix and its own chunk."""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.triton.attention import step_attention
from qpdsl.executor.kernels.triton.attention.tuning import Tuning, for_prefill


def prefill(
    query: torch.Tensor,
    rows: KVRows,
    batch: PagedBatch,
    layer: int,
    scoring: Scoring,
    out: torch.Tensor,
    tuning: Tuning | None = None,
) -> None:
    """Writes `out` [T, H, D] for `query` [T, H, D] (last dimension contiguous). Twin: `reference.attention`."""
    tuning = tuning or for_prefill(rows, query.shape[1] // rows.kv_heads, batch.longest_query)
    step_attention.attend(query, rows, batch, layer, scoring, out, tuning, 0, 0)
