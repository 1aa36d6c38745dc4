"""Compiled attention of a single layer against its torch twin, and the bits of a query in any batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from qpdsl.executor.kernels.data.kv_rows import KVRows, KVShape
from qpdsl.executor.kernels.data.paged_batch import Alibi, Heads, PagedBatch, Scoring
from qpdsl.executor.kernels.llvm.cache import HeadShape
from qpdsl.executor.kernels.llvm.layer_attention import LayerAttention
from qpdsl.executor.kernels.plain import reference
from tests.support.executor.paged_case import LAYERS, make_batch, make_query, make_rows, page_tables

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the cases live on the GPU")

CONTEXTS = [1, 16, 17, 40, 0, 90, 23]
QUERIES = [1, 1, 1, 1, 0, 60, 5]
LAYER = LAYERS - 1


def case(heads: HeadShape, seed: int = 5) -> tuple[KVRows, PagedBatch, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows full of keys and values, a batch over them, and its new queries, keys and values."""
    generator = torch.Generator().manual_seed(seed)
    tables, count = page_tables(CONTEXTS, heads.page_size, generator, [(1, 3, 5)])
    rows = make_rows(count, heads.page_size, heads.kv_heads, heads.dim, torch.float32, heads.kind, generator)
    batch = make_batch(CONTEXTS, QUERIES, tables, heads.page_size, 4)
    new = [make_query(sum(QUERIES), n, heads.dim, torch.float32, generator) for n in (heads.kv_heads,) * 2]
    query = make_query(sum(QUERIES), heads.fold * heads.kv_heads, heads.dim, torch.float32, generator)
    return rows, batch, query, new[0], new[1]


def copied(rows: KVRows) -> KVRows:
    if rows.kind == "plain":
        return KVRows.plain(rows.data.clone())
    return KVRows.quantized(rows.data.clone(), rows.kind, rows.page_size, rows.kv_heads, rows.dim)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (1, None), (20, None), (20, 2.0)])
@pytest.mark.parametrize(
    "heads",
    [
        HeadShape(1, 2, 32, 16),
        HeadShape(3, 1, 80, 16),
        HeadShape(4, 2, 12, 16),
        HeadShape(8, 2, 64, 16, "int8"),
        HeadShape(2, 3, 48, 16, "fp8"),
        HeadShape(4, 2, 32, 16, "int4"),
    ],
    ids=str,
)
def test_it_stores_and_attends_as_the_twin(
    heads: HeadShape, window: int | None, softcap: float | None, sinks: bool
) -> None:
    rows, batch, query, key, value = case(heads)
    scores = torch.linspace(-3, 3, query.shape[1]) if sinks else None
    scoring = Scoring(heads.dim**-0.5, window, softcap, scores)
    expected_rows = copied(rows)
    reference.store(expected_rows, key, value, batch.slots, LAYER)
    expected = reference.attention(query, expected_rows, batch, LAYER, scoring)
    attended = LayerAttention(heads).attend(Heads(query, key, value), rows, batch, LAYER, scoring)
    assert torch.equal(rows.data, expected_rows.data)
    torch.testing.assert_close(attended, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_bits_of_a_query_depend_on_its_own_context_alone(threads: int) -> None:
    heads = HeadShape(4, 2, 64, 16)
    rows, batch, query, key, value = case(heads)
    scoring = Scoring(heads.dim**-0.5, None, None, torch.linspace(-3, 3, query.shape[1]))
    assert_alone_as_together(heads, rows, batch, Heads(query, key, value), scoring, threads)


def assert_alone_as_together(
    heads: HeadShape, rows: KVRows, batch: PagedBatch, given: Heads, scoring: Scoring, threads: int, layer: int = LAYER
) -> None:
    attention, before = LayerAttention(heads), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = []
        for sequence, (first, last) in enumerate(pairwise(batch.query_start.tolist())):
            for row in range(first, last):
                seen = CONTEXTS[sequence] - (last - row) + 1
                single = PagedBatch(
                    batch.pages[sequence : sequence + 1],
                    torch.tensor([seen], dtype=torch.int32),
                    batch.slots[row : row + 1],
                    torch.tensor([0, 1], dtype=torch.int32),
                    1,
                    seen,
                )
                own = slice(row, row + 1)
                alone.append(attention.attend(Heads(*(part[own] for part in given)), rows, single, layer, scoring))
        torch.set_num_threads(threads)
        # Work for several threads, as a long context would be.
        together = attention.attend(given, rows, replace(batch, longest=1 << 20), layer, scoring)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together, torch.cat(alone))


UNEVEN = {
    "wide keys": HeadShape(2, 2, 24, 16, value=16),
    "wide values": HeadShape(1, 3, 16, 16, value=32),
    "equal": HeadShape(3, 2, 32, 16),
    "latent": HeadShape(20, 1, 40, 16, value=32, latent=True),
}
SEEN = {
    "chunks": Scoring(0.2, chunk=24),
    "distances": Scoring(0.2, alibi=Alibi(torch.empty(0), 0.7)),
    "rounded positions": Scoring(0.2, alibi=Alibi(torch.empty(0), 0.7, rounded=True)),
    "a window": Scoring(0.2, window=20),
}


def part_of_a_page(heads: HeadShape) -> tuple[HeadShape, KVRows, PagedBatch, Heads]:
    """Rows that are pages of several layers of other shapes too, and new queries, keys and values."""
    generator = torch.Generator().manual_seed(3)
    tables, count = page_tables(CONTEXTS, heads.page_size, generator, [(1, 3, 5)])
    batch = make_batch(CONTEXTS, QUERIES, tables, heads.page_size, 4)
    shape = KVShape(heads.kv_heads, heads.dim, heads.value_dim, heads.latent)
    size, before = shape.row_bytes("plain", torch.float32, heads.page_size), 3 * heads.page_size * 4
    buffer = torch.randn(count, (before + size) // 4 + 64, generator=generator).view(torch.uint8)
    rows = KVRows.of(buffer[:, before : before + size], shape, heads.page_size, "plain", torch.float32)
    query, key = (
        make_query(sum(QUERIES), n * heads.kv_heads, heads.dim, torch.float32, generator) for n in (heads.fold, 1)
    )
    value = make_query(sum(QUERIES), heads.kv_heads, heads.value_dim, torch.float32, generator)
    if heads.latent:
        value = key[..., : heads.value_dim]
    return replace(heads, stride=buffer.shape[1]), rows, batch, Heads(query, key, value)


@pytest.mark.parametrize(("kind", "seen"), list(zip(UNEVEN, SEEN, strict=True)))
def test_so_do_other_shapes_and_scores(kind: str, seen: str) -> None:
    heads, rows, batch, given = part_of_a_page(UNEVEN[kind])
    scoring = SEEN[seen]
    if scoring.alibi is not None:
        slopes = torch.linspace(0.01, 0.5, given.query.shape[1])
        scoring = scoring._replace(alibi=scoring.alibi._replace(slopes=slopes))
    expected_rows = replace(rows, data=rows.data.clone())
    reference.store(expected_rows, given.key, given.value, batch.slots, 0)
    expected = reference.attention(given.query, expected_rows, batch, 0, scoring)
    attended = LayerAttention(heads).attend(given, rows, batch, 0, scoring)
    assert torch.equal(rows.data, expected_rows.data)
    torch.testing.assert_close(attended, expected, rtol=1e-5, atol=1e-5)
    assert_alone_as_together(heads, rows, batch, given, scoring, 2, layer=0)


def test_padding_rows_are_zero() -> None:
    heads = HeadShape(2, 2, 32, 16)
    rows, batch, *new = case(heads)
    padded = [torch.cat((part, part[:3])) for part in new]
    batch = replace(batch, slots=torch.cat((batch.slots, torch.zeros(3, dtype=torch.int64))))
    attended = LayerAttention(heads).attend(Heads(*padded), rows, batch, LAYER, Scoring(0.2))
    assert attended.shape == (sum(QUERIES) + 3, 4, 32) and not attended[sum(QUERIES) :].any()


def test_what_it_cannot_compute_is_refused() -> None:
    with pytest.raises(LookupError):
        LayerAttention(HeadShape(2, 2, 6, 16))
