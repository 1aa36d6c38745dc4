"""Cascade attention against decode attention without shared prefixes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from qpdsl.executor.kernels.data.kv_rows import RowKind
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.data.shared_prefixes import plan
from qpdsl.executor.kernels.plain import reference
from qpdsl.executor.kernels.triton.cascade import cascade
from qpdsl.executor.kernels.triton.tuning import Tuning
from tests.support.executor.paged_case import DEVICE, TOLERANCE, make_batch, make_query, make_rows, page_tables

F32, BF16 = torch.float32, torch.bfloat16
# Sequences 0, 2, 3, 5 share three pages, and 2 and 5 of them two more; 1 and 6 share two; 4 shares none.
CONTEXTS = [60, 40, 90, 49, 35, 81, 33]
SHARED = [(3, 0, 2, 3, 5), (5, 2, 5), (2, 1, 6)]


def shared_batch(page_size: int, generator: torch.Generator) -> tuple[PagedBatch, int]:
    contexts = [length * page_size // 16 for length in CONTEXTS]
    tables, count = page_tables(contexts, page_size, generator, SHARED)
    batch = make_batch(contexts, [1] * len(contexts), tables, page_size, len(contexts))
    return replace(batch, cascade=plan(tables, contexts, page_size, DEVICE, least=page_size)), count


@pytest.mark.parametrize(
    ("kind", "dtype", "page_size", "fold", "dim", "window", "cap", "sinks", "tile", "splits"),
    [
        ("plain", F32, 16, 4, 32, None, None, False, 16, (128, 128)),
        ("plain", F32, 16, 7, 80, None, 5.0, True, 16, (32, 16)),
        ("plain", BF16, 16, 1, 64, 30, None, False, 16, (16, 128)),
        ("plain", F32, 16, 4, 32, 50, None, True, 32, (32, 32)),
        ("int8", F32, 16, 4, 64, None, None, False, 16, (32, 32)),
        ("fp8", BF16, 32, 4, 32, None, None, False, 16, (64, 48)),
    ],
)
def test_agrees_with_decoding_alone(
    kind: RowKind,
    dtype: torch.dtype,
    page_size: int,
    fold: int,
    dim: int,
    window: int | None,
    cap: float | None,
    sinks: bool,
    tile: int,
    splits: tuple[int, int],
) -> None:
    generator = torch.Generator().manual_seed(dim)
    batch, count = shared_batch(page_size, generator)
    assert batch.cascade is not None
    rows = make_rows(count, page_size, 1, dim, dtype, kind, generator)
    query = make_query(len(CONTEXTS), fold, dim, dtype, generator)
    scores = torch.randn(fold, generator=generator).to(DEVICE) if sinks else None
    scoring = Scoring(dim**-0.5 * 2, window, cap, scores)
    out = torch.full(query.shape, float("nan"), dtype=dtype, device=DEVICE)
    above, below = (Tuning(keys=16, rows=rows_, split=n) for rows_, n in zip((tile, 16), splits, strict=True))
    cascade(query, rows, batch, batch.cascade, 1, scoring, out, (above, below))
    alone = reference.attention(query, rows, batch, 1, scoring)
    torch.testing.assert_close(out, alone, rtol=0, atol=TOLERANCE[dtype])
    twin = reference.cascade(query, rows, batch, batch.cascade, 1, scoring)
    torch.testing.assert_close(out, twin, rtol=0, atol=TOLERANCE[dtype])


def test_padding_tiles_do_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    batch, count = shared_batch(16, generator)
    assert batch.cascade is not None
    tiles = torch.nn.functional.pad(batch.cascade.tiles, (0, 0, 0, 3))
    rows = make_rows(count, 16, 1, 32, F32, "plain", generator)
    query = make_query(len(CONTEXTS), 2, 32, F32, generator)
    out = torch.empty(query.shape, device=DEVICE)
    cascade(query, rows, batch, replace(batch.cascade, tiles=tiles), 0, Scoring(0.2), out)
    wanted = reference.attention(query, rows, batch, 0, Scoring(0.2))
    torch.testing.assert_close(out, wanted, rtol=0, atol=TOLERANCE[F32])
