"""Decode attention over pages against its torch twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind
from qpdsl.executor.kernels.data.paged_batch import Scoring
from qpdsl.executor.kernels.plain import reference
from qpdsl.executor.kernels.triton import common, step_attention, tuning
from qpdsl.executor.kernels.triton.step_attention import attend
from qpdsl.executor.kernels.triton.tuning import Tuning, part_tokens
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
    attend(query, rows, batch, 1, scoring, out, tuning)
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
        attend(query, rows, batch, 0, scoring, out, Tuning(keys=16, split=32))
        wanted = reference.attention(query, rows, batch, 0, scoring)
        torch.testing.assert_close(out, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("magnitude", [1.0, 1e-3, 1e4])
def test_weights_in_sixteen_bits_hold_values_of_any_scale(magnitude: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """e4m3 as a device converts it, to float16 and with products of it, though scales or queries are far from 1."""
    generator = torch.Generator().manual_seed(6)
    tables, count = page_tables([70], 16, generator)
    rows = make_rows(count, 16, 1, 32, F32, "fp8", generator)
    rows.split()[1][:, :, 1] *= magnitude
    batch = make_batch([70], [1], tables, 16, 1)
    # Larger than any float16.
    query = make_query(1, 4, 32, F32, generator) * 1e5
    out = torch.empty(query.shape, device=DEVICE)

    def hard(query: torch.Tensor, rows: KVRows) -> common.KernelRows:
        return common.KernelRows.of(rows)._replace(KIND=common.HARD_FP8, DOT=tl.constexpr(tl.float16))

    monkeypatch.setattr(step_attention, "attended", hard)
    attend(query, rows, batch, 0, Scoring(3e-6), out, Tuning(keys=16, split=32))
    wanted = reference.attention(query, rows, batch, 0, Scoring(3e-6))
    torch.testing.assert_close(out, wanted, rtol=0, atol=3e-3 * magnitude)


@triton.jit
def share_kernel(context, out, decodes, size, workers, WINDOW: tl.constexpr):  # type: ignore[no-untyped-def]
    worker = tl.program_id(0)
    todo, sequence, item = tuning.share_of(context, None, decodes, size, worker, workers, WINDOW, 4)
    tl.store(out + worker * 3, todo)
    tl.store(out + worker * 3 + 1, sequence)
    tl.store(out + worker * 3 + 2, item)


@pytest.mark.parametrize("workers", [1, 3, 8, 30])
@pytest.mark.parametrize("window", [0, 20])
def test_programs_have_equal_shares_of_ragged_contexts(workers: int, window: int) -> None:
    contexts, size = [0, 100, 16, 1, 300, 0, 33, 17, 16, 0], 16
    lengths = torch.tensor(contexts, dtype=torch.int32, device=DEVICE)
    shares = torch.zeros(workers, 3, dtype=torch.int32, device=DEVICE)
    share_kernel[(workers,)](lengths, shares, len(contexts), size, workers, WINDOW=window)
    parts = []
    for sequence, length in enumerate(contexts):
        first = max(0, length - window) // size if window else 0
        parts += [(sequence, part) for part in range(max(1, -(-length // size) - first))]
    taken = []
    for todo, sequence, item in shares.tolist():
        if todo:
            at = parts.index((sequence, item))
            taken += parts[at : at + todo]
    assert taken == parts
    counts = shares[:, 0].tolist()
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("sequences", [1, 4, 64, 256])
@pytest.mark.parametrize("longest", [1, 4096, 131_072])
def test_parts_fill_the_device_and_fit_memory(sequences: int, longest: int) -> None:
    programs, room = sequences * 8, 264
    size = part_tokens(Tuning(), sequences, programs, longest, room)
    assert size % 64 == 0 and size & (size - 1) == 0
    # Where a captured graph may meet any context, contexts of 4096 tokens still fill the device.
    assert programs * (4096 // size) >= min(room, programs * 8) * 0.9
    assert sequences * -(-longest // size) <= max(8192, sequences)
