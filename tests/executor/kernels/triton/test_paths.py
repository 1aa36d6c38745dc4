"""Paths in trees: their tokens are read wherever they lie, in their order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind
from qpdsl.executor.kernels.data.paged_batch import NOWHERE, PagedBatch, Paths, Scoring
from qpdsl.executor.kernels.data.shared_prefixes import plan
from qpdsl.executor.kernels.plain import reference
from tests.support.executor.paged_case import DEVICE, LAYERS, TOLERANCE, make_batch, make_query, make_rows, page_tables

PAGE, F32 = 16, torch.float32
# Four paths of a tree behind 43 tokens, and the places of their tokens; then a sequence alone and a chunk.
STEM, PATHS = 43, [[43], [44], [43, 46], [43, 46, 49]]
CONTEXTS, QUERIES = [STEM + len(path) for path in PATHS] + [30, 25], [1] * 5 + [9]


def tree(kind: RowKind) -> tuple[KVRows, PagedBatch, PagedBatch, torch.Generator]:
    """Rows, the batch over them, and one in which each path lies in its places, in pages of its own."""
    generator = torch.Generator().manual_seed(7)
    # Room for all places of the tree, and for the copies.
    tables, count = page_tables([64, *CONTEXTS], PAGE, generator)
    rows = make_rows(count, PAGE, 2, 32, F32, kind, generator)
    own = tables[1:]
    for path, table in zip(PATHS, own, strict=False):
        for position in range(STEM + len(path)):
            place = position if position < STEM else path[position - STEM]
            for layer in range(LAYERS):
                source, target = tables[0][place // PAGE] + layer, table[position // PAGE] + layer
                if kind == "plain":
                    rows.data[target, position % PAGE] = rows.data[source, place % PAGE]
                else:
                    data, scales = rows.split()
                    data[target, position % PAGE] = data[source, place % PAGE]
                    scales[target, position % PAGE] = scales[source, place % PAGE]
    straight = make_batch(CONTEXTS, QUERIES, own, PAGE, 5)
    batch = make_batch(CONTEXTS, QUERIES, [tables[0]] * 4 + own[4:], PAGE, 5)
    start = torch.tensor([STEM] * 4 + [NOWHERE] * 2, dtype=torch.int32)
    places = torch.tensor([[*path, *[0] * (3 - len(path))] for path in PATHS] + [[0] * 3] * 2, dtype=torch.int32)
    return rows, replace(batch, paths=Paths(start.to(DEVICE), places.to(DEVICE))), straight, generator


@pytest.mark.parametrize("kind", ["plain", "int8"])
@pytest.mark.parametrize("scoring", [Scoring(0.2), Scoring(0.2, window=5, softcap=3.0)], ids=str)
def test_paths_are_attended_as_the_same_tokens_in_their_places(kind: RowKind, scoring: Scoring) -> None:
    rows, batch, straight, generator = tree(kind)
    query = make_query(sum(QUERIES), 4, 32, F32, generator)
    wanted = reference.attention(query, rows, straight, 1, scoring)
    torch.testing.assert_close(reference.attention(query, rows, batch, 1, scoring), wanted, rtol=0, atol=1e-6)
    mixed = paged_attention.attention(query, rows, batch, 1, scoring)
    torch.testing.assert_close(mixed, wanted, rtol=0, atol=TOLERANCE[F32])
    same = paged_attention.attention(query, rows, batch, 1, scoring, deterministic=True)
    assert torch.equal(same, paged_attention.attention(query, rows, straight, 1, scoring, deterministic=True))


def test_what_lies_before_a_tree_is_read_once() -> None:
    rows, batch, straight, generator = tree("plain")
    # The pages that hold no token of the tree.
    tables = [batch.pages[number].tolist()[: STEM // PAGE] for number in range(4)]
    tables.append(batch.pages[4].tolist()[:2])
    shared = plan(tables, CONTEXTS[:5], PAGE, DEVICE, least=PAGE)
    assert shared is not None and shared.start.tolist() == [32] * 4 + [0]
    query, scoring = make_query(sum(QUERIES), 4, 32, F32, generator), Scoring(0.2, window=20)
    mixed = paged_attention.attention(query, rows, replace(batch, cascade=shared), 1, scoring)
    wanted = reference.attention(query, rows, straight, 1, scoring)
    torch.testing.assert_close(mixed, wanted, rtol=0, atol=TOLERANCE[F32])
