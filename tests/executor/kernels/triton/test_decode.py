"""Decode attention over pages against its torch twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from qpdsl.executor.kernels.data.kv_rows import RowKind
from qpdsl.executor.kernels.data.paged_batch import Scoring
from qpdsl.executor.kernels.plain import reference
from qpdsl.executor.kernels.triton.attention.decode import decode
from qpdsl.executor.kernels.triton.attention.tuning import Tuning
from tests.support.executor.paged_case import DEVICE, TOLERANCE, make_batch, make_query, make_rows, page_tables

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
# Element, type, page size, key heads, queries a key head, width, window, cap, sinks, tokens of a part.
CASES = [
    ("plain", F32, 16, 2, 4, 32, None, None, False, 128),
    ("plain", F32, 16, 1, 7, 80, None, None, False, 32),
    ("plain", F32, 32, 2, 1, 64, 20, None, False, 64),
    ("plain", F32, 16, 1, 4, 96, None, 5.0, True, 32),
    ("plain", F32, 16, 1, 20, 64, 1, None, False, 128),
    ("plain", BF16, 16, 2, 4, 128, None, None, False, 16),
    ("plain", BF16, 32, 1, 7, 64, 33, 30.0, True, 32),
    ("plain", F16, 16, 1, 1, 80, 16, None, False, 128),
    ("int8", F32, 16, 2, 4, 64, None, None, False, 32),
    ("int8", BF16, 32, 1, 7, 80, 40, None, True, 64),
    ("fp8", F32, 16, 1, 4, 128, None, 20.0, False, 64),
    ("fp8", F16, 16, 2, 1, 32, 17, None, False, 32),
    ("int4", BF16, 16, 1, 4, 64, None, None, False, 64),
    ("int4", F32, 16, 2, 1, 80, 17, None, True, 128),
]
# No token, the first token, a full page, one more, and enough for several blocks and parts.
CONTEXTS = [0, 1, 16, 33, 100]


@pytest.mark.parametrize(
    ("kind", "dtype", "page_size", "kv_heads", "fold", "dim", "window", "cap", "sinks", "split"), CASES
)
def test_agrees_with_the_twin(
    kind: RowKind,
    dtype: torch.dtype,
    page_size: int,
    kv_heads: int,
    fold: int,
    dim: int,
    window: int | None,
    cap: float | None,
    sinks: bool,
    split: int,
) -> None:
    generator = torch.Generator().manual_seed(dim + split)
    tables, count = page_tables(CONTEXTS, page_size, generator)
    rows = make_rows(count, page_size, kv_heads, dim, dtype, kind, generator)
    batch = make_batch(CONTEXTS, [0, 1, 1, 1, 1], tables, page_size, len(CONTEXTS))
    # A padding row has a query and no context.
    batch = replace(batch, query_start=torch.arange(len(CONTEXTS) + 1, dtype=torch.int32, device=DEVICE))
    query = make_query(len(CONTEXTS), kv_heads * fold, dim, dtype, generator)
    scores = torch.randn(kv_heads * fold, generator=generator).to(DEVICE) if sinks else None
    scoring = Scoring(dim**-0.5 * 2, window, cap, scores)
    out = torch.full(query.shape, float("nan"), dtype=dtype, device=DEVICE)
    tuning = Tuning(keys=32 if page_size == 32 else 16, small=32 if fold > 16 else 16, split=split)
    decode(query, rows, batch, 1, scoring, out, tuning)
    wanted = reference.attention(query, rows, batch, 1, scoring)
    torch.testing.assert_close(out, wanted, rtol=0, atol=TOLERANCE[dtype])


def test_scores_far_apart_do_not_overflow() -> None:
    generator = torch.Generator().manual_seed(3)
    tables, count = page_tables([50], 16, generator)
    rows = make_rows(count, 16, 1, 32, F32, "plain", generator)
    batch = make_batch([50], [1], tables, 16, 1)
    query = make_query(1, 2, 32, F32, generator)
    for scoring in (Scoring(1e3), Scoring(1e3, softcap=1.0)):
        out = torch.empty(query.shape, device=DEVICE)
        decode(query, rows, batch, 0, scoring, out, Tuning(keys=16, split=32))
        wanted = reference.attention(query, rows, batch, 0, scoring)
        torch.testing.assert_close(out, wanted, rtol=0, atol=1e-4)


