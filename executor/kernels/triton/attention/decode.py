"""Decode attention over pages: one query a sequence, whose context is split into parts that run in parallel."""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.triton.attention import step_attention
from qpdsl.executor.kernels.triton.attention.tuning import Tuning, for_decode


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
    step_attention.attend(query, rows, batch, layer, scoring, out, tuning, query.shape[0])
