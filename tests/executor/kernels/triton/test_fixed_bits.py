"""Fixed bits: decoding a token gives those of prefilling it, whatever else is in the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind
from qpdsl.executor.kernels.data.paged_batch import Scoring
from qpdsl.executor.kernels.plain import reference
from qpdsl.executor.kernels.triton import step_attention
from qpdsl.executor.kernels.triton.step_attention import attend
from qpdsl.executor.kernels.triton.tuning import PART, Tuning
from tests.support.executor.paged_case import DEVICE, TOLERANCE, make_batch, make_query, make_rows, page_tables

F32 = torch.float32
SMALL = Tuning(keys=16, rows=32, split=32, folded=True)


def attended(
    query: torch.Tensor,
    rows: KVRows,
    table: list[int],
    context: int,
    scoring: Scoring,
    tuning: Tuning | None,
    decoded: list[int],
) -> torch.Tensor:
    """The last tokens of a context: those that come `decoded` before its end as sequences, the others as a chunk."""
    chunk = len(query) - len(decoded)
    contexts = [context - back for back in decoded] + [context] * (chunk > 0)
    queries = [1] * len(decoded) + [chunk] * (chunk > 0)
    batch = make_batch(contexts, queries, [table] * len(contexts), rows.page_size, len(decoded))
    out = torch.full(query.shape, float("nan"), device=DEVICE)
    attend(query, rows, batch, 1, scoring, out, tuning, deterministic=True)
    return out


@pytest.mark.usefixtures("row_by_row")
@pytest.mark.parametrize(
    ("kind", "fold", "window", "cap", "sinks"),
    [
        ("plain", 4, None, None, False),
        ("plain", 3, 41, None, True),
        ("int8", 4, None, 5.0, True),
        ("fp8", 2, 33, None, False),
    ],
)
def test_decoding_gives_the_bits_of_prefilling(
    kind: RowKind, fold: int, window: int | None, cap: float | None, sinks: bool
) -> None:
    generator = torch.Generator().manual_seed(fold)
    context = 60
    tables, count = page_tables([context], 16, generator)
    rows = make_rows(count, 16, 1, 16, F32, kind, generator)
    query = make_query(context, fold, 16, F32, generator)
    scores = torch.randn(fold, generator=generator).to(DEVICE) if sinks else None
    scoring = Scoring(0.3, window, cap, scores)
    whole = attended(query, rows, tables[0], context, scoring, SMALL, [])
    batch = make_batch([context], [context], tables, 16, 0)
    wanted = reference.attention(query, rows, batch, 1, scoring)
    torch.testing.assert_close(whole, wanted, rtol=0, atol=TOLERANCE[F32])
    # Ends of blocks and of parts, and places between them.
    back = [0, 27, 28, 29, 59]
    rowwise = attended(query[[context - 1 - b for b in back]], rows, tables[0], context, scoring, SMALL, back)
    assert torch.equal(rowwise, whole[[context - 1 - b for b in back]])
    # The last ten tokens as a chunk, beside two that decode.
    order = [context - 1 - 30, context - 1, *range(context - 10, context)]
    beside = attended(query[order], rows, tables[0], context, scoring, SMALL, [30, 0])
    assert torch.equal(beside, whole[order])


@pytest.mark.usefixtures("row_by_row")
def test_parts_of_the_engines_size_give_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(9)
    context = PART + 40
    tables, count = page_tables([context], 32, generator)
    rows = make_rows(count, 32, 1, 16, F32, "plain", generator)
    query, scoring = make_query(45, 2, 16, F32, generator), Scoring(0.4)
    whole = attended(query, rows, tables[0], context, scoring, None, [])
    back = [0, 39, 40, 44]
    decoded = attended(query[[44 - b for b in back]], rows, tables[0], context, scoring, None, back)
    assert torch.equal(decoded, whole[[44 - b for b in back]])


def test_one_compiled_kernel_decodes_and_prefills(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants make another kernel, which a compiler may let round otherwise; the interpreter would not show it."""
    compiled: list[dict[str, Any]] = []

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *arguments, **constants: compiled.append(constants)

    generator = torch.Generator().manual_seed(2)
    tables, count = page_tables([40, 40], 16, generator)
    rows = make_rows(count, 16, 1, 64, F32, "plain", generator)
    monkeypatch.setattr(step_attention, "attention_kernel", Recorder())
    for decodes, queries in ((2, [1, 1]), (1, [1, 30]), (0, [7, 30])):
        batch = make_batch([40, 40], queries, tables, 16, decodes)
        query = make_query(sum(queries), 4, 64, F32, generator)
        paged_attention.attention(query, rows, batch, 0, Scoring(1.0), deterministic=True)
    assert len(compiled) == 3 and compiled[0] == compiled[1] == compiled[2]
    assert compiled[0]["DECODES"] and compiled[0]["CHUNKS"]


@pytest.mark.parametrize("cut", [3, 20])
def test_bits_do_not_depend_on_how_many_programs_share_the_parts(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(cut)
    # More sequences than are counted at a time, some of them empty.
    contexts = [50, 0, 1, 16, 33] * 2
    tables, count = page_tables(contexts, 16, generator)
    rows = make_rows(count, 16, 1, 16, F32, "plain", generator)
    batch = make_batch(contexts, [min(length, 1) for length in contexts], tables, 16, len(contexts))
    batch = replace(batch, query_start=torch.arange(len(contexts) + 1, dtype=torch.int32, device=DEVICE))
    query = make_query(len(contexts), 2, 16, F32, generator)

    def run() -> torch.Tensor:
        out = torch.full(query.shape, float("nan"), device=DEVICE)
        attend(query, rows, batch, 1, Scoring(0.5), out, Tuning(keys=16, split=16))
        return out

    monkeypatch.setattr(step_attention, "_COUNTED", 4)
    one = run()
    torch.testing.assert_close(one, reference.attention(query, rows, batch, 1, Scoring(0.5)), rtol=0, atol=2e-5)
    monkeypatch.setattr(step_attention, "multiprocessors", lambda device: cut)
    assert torch.equal(run(), one)


@pytest.mark.usefixtures("row_by_row")
def test_one_launch_gives_the_bits_of_two() -> None:
    generator = torch.Generator().manual_seed(4)
    contexts, queries = [40, 70, 0, 50, 9, 0], [1, 1, 0, 21, 9, 0]
    tables, count = page_tables(contexts, 16, generator)
    rows = make_rows(count, 16, 2, 32, F32, "plain", generator)
    batch = make_batch(contexts, queries, tables, 16, 2)
    query, scoring = make_query(32, 8, 32, F32, generator), Scoring(0.2, window=30)
    tuning = Tuning(keys=16, rows=32, split=32)
    together, apart = (torch.full(query.shape, float("nan"), device=DEVICE) for _ in range(2))
    attend(query, rows, batch, 1, scoring, together, tuning)
    attend(query[:2], rows, batch, 1, scoring, apart[:2], tuning)
    later = make_batch(contexts[2:], queries[2:], tables[2:], 16, 0)
    attend(query[2:], rows, later, 1, scoring, apart[2:], tuning)
    assert torch.equal(together, apart)
    torch.testing.assert_close(
        together, reference.attention(query, rows, batch, 1, scoring), rtol=0, atol=TOLERANCE[F32]
    )
