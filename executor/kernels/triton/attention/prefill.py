"""Prefill attention over pages: chunks of different lengths, each query over the cached prefix and its own chunk."""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.triton.attention import tiles
from qpdsl.executor.kernels.triton.attention.tuning import Tuning, for_fixed_bits, for_prefill


def prefill(
    query: torch.Tensor,
    rows: KVRows,
    batch: PagedBatch,
    layer: int,
    scoring: Scoring,
    out: torch.Tensor,
    first: int = 0,
    tuning: Tuning | None = None,
    deterministic: bool = False,
) -> None:
    """Writes `out` [T, H, D] at the tokens of the sequences from `first` on. Twin: `reference.attention`.

    `query` [T, H, D], last dimension contiguous.
    """
    fold = query.shape[1] // rows.kv_heads
    if tuning is None:
        tuning = for_fixed_bits(rows, fold) if deterministic else for_prefill(rows, fold, batch.longest_query)
    tiles.attend(query, rows, batch, layer, scoring, out, tuning, 0, first)
