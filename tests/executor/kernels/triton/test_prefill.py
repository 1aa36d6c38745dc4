"""Prefill attention over pages against its torch twin."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from qpdsl.executor.kernels.data.kv_rows import RowKind
from qpdsl.executor.kernels.data.paged_batch import Scoring
from qpdsl.executor.kernels.plain import reference
from qpdsl.executor.kernels.triton.step_attention import attend
from qpdsl.executor.kernels.triton.tuning import Tuning
from tests.support.executor.paged_case import DEVICE, TOLERANCE, make_batch, make_query, make_rows, page_tables

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
# Element, type, page size, key heads, queries a key head, width, window, cap, sinks, rows a program.
CASES = [
    ("plain", F32, 16, 2, 4, 32, None, None, False, 32),
    ("plain", F32, 16, 1, 7, 80, None, None, True, 16),
    ("plain", F32, 32, 2, 1, 64, 20, None, False, 16),
    ("plain", BF16, 16, 1, 4, 128, None, 30.0, False, 64),
    ("plain", BF16, 32, 1, 7, 64, 5, None, True, 32),
    ("plain", F16, 16, 1, 1, 96, 40, 5.0, False, 32),
    ("int8", F32, 16, 1, 4, 64, None, None, False, 32),
    ("int8", BF16, 32, 1, 1, 80, 17, None, False, 16),
    ("fp8", F16, 16, 1, 7, 32, None, 20.0, True, 64),
]
# A first chunk, a later one, a whole prompt, one token that decodes, and a padding row.
CONTEXTS, QUERIES = [5, 50, 20, 33, 0], [5, 19, 20, 1, 0]


@pytest.mark.parametrize(
    ("kind", "dtype", "page_size", "kv_heads", "fold", "dim", "window", "cap", "sinks", "tile"), CASES
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
    tile: int,
) -> None:
    generator = torch.Generator().manual_seed(dim + tile)
    tables, count = page_tables(CONTEXTS, page_size, generator)
    rows = make_rows(count, page_size, kv_heads, dim, dtype, kind, generator)
    batch = make_batch(CONTEXTS, QUERIES, tables, page_size, 0)
    query = make_query(sum(QUERIES), kv_heads * fold, dim, dtype, generator)
    scores = torch.randn(kv_heads * fold, generator=generator).to(DEVICE) if sinks else None
    scoring = Scoring(dim**-0.5 * 2, window, cap, scores)
    out = torch.full(query.shape, float("nan"), dtype=dtype, device=DEVICE)
    attend(query, rows, batch, 1, scoring, out, tuning=Tuning(keys=16, rows=tile))
    wanted = reference.attention(query, rows, batch, 1, scoring)
    torch.testing.assert_close(out, wanted, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.usefixtures("row_by_row")
def test_bits_do_not_depend_on_the_chunks_or_the_batch() -> None:
    generator = torch.Generator().manual_seed(5)
    contexts = [40, 30]
    tables, count = page_tables(contexts, 16, generator)
    rows = make_rows(count, 16, 1, 32, F32, "plain", generator)
    query = make_query(40, 4, 32, F32, generator)
    scoring = Scoring(0.2, window=25)

    def run(context: int, queries: int, others: list[int]) -> torch.Tensor:
        lengths, chunks = [*(contexts[1] for _ in others), context], [*others, queries]
        batch = make_batch(lengths, chunks, [*(tables[1] for _ in others), tables[0]], 16, 0)
        part = query[context - queries : context]
        whole = torch.cat((query[: sum(others)], part))
        out = torch.empty(whole.shape, device=DEVICE)
        attend(whole, rows, batch, 0, scoring, out, deterministic=True)
        return out[sum(others) :]

    at_once = run(40, 40, [])
    in_chunks = torch.cat((run(7, 7, []), run(31, 24, [3]), run(32, 1, [30]), run(40, 8, [1])))
    assert torch.equal(at_once, in_chunks)
