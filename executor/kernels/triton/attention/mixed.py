"""Attention of a step in one launch: sequences that decode beside chunks of prompts."""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.triton.attention import step_attention
from qpdsl.executor.kernels.triton.attention.tuning import Tuning, for_fixed_bits, for_mixed


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
    """Writes `out` [T, H, D] for `query` [T, H, D] (last dimension contiguous). Twin: `reference.attention`.

    `deterministic`: decoding a token gives the bits of prefilling it, in any batch.
    """
    fold = query.shape[1] // rows.kv_heads
    tuning = tuning or (for_fixed_bits if deterministic else for_mixed)(rows, fold)
    chunks = batch.decodes if batch.decodes < batch.sequences else None
    step_attention.attend(query, rows, batch, layer, scoring, out, tuning, batch.decodes, chunks)
