"""Paged attention against plain attention over the same keys, computed row by row in float64."""

from __future__ import annotations

import random

import pytest
import torch

from qpdsl.executor.engine.batch.grouped_batch import build, paged_attention, write_kv
from qpdsl.executor.engine.memory.kv_cache import KVLayout
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import Scoring
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.executor.requests.ticket import Ticket

# In the order of query and context length, which is the order of the rows in a batch.
LENGTHS = [(1, 0), (1, 5), (1, 37), (1, 63), (7, 0), (16, 16), (20, 33), (33, 2)]


def plain(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scoring: Scoring) -> torch.Tensor:
    """Attention of the last len(query) positions: query [Q, H, D], keys and values [L, KV, D]."""
    fold = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(fold, 1).double(), values.repeat_interleave(fold, 1).double()
    scores = torch.einsum("qhd,lhd->hql", query.double(), keys) * scoring.scale
    if scoring.softcap:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    distance = torch.arange(len(keys) - len(query), len(keys))[:, None] - torch.arange(len(keys))
    allowed = (distance >= 0) & (distance < (scoring.window or len(keys)))
    scores = scores.masked_fill(~allowed, float("-inf"))
    if scoring.sinks is not None:
        sinks = scoring.sinks.double()[:, None, None].expand(-1, len(query), 1)
        scores = torch.cat((sinks, scores), dim=-1)
        values = torch.cat((torch.zeros_like(values[:1]), values))
    weights = scores.softmax(-1)
    return torch.einsum("hql,lhd->qhd", weights, values).float()


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize(
    ("window", "softcap", "sinks"),
    [(None, None, False), (9, None, False), (None, 2.0, False), (9, 2.0, False), (None, None, True), (9, 2.0, True)],
)
def test_equals_plain_attention(
    layer: int, page_size: int, heads: int, kv_heads: int, window: int | None, softcap: float | None, sinks: bool
) -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    dim = 8
    chunks, contexts = [], []
    free = list(range(0, 400, 2))
    rng.shuffle(free)
    rows = KVRows.plain(torch.randn(400, page_size, 2, kv_heads, dim))
    for count, computed in LENGTHS:
        length = count + computed
        request = GenerateRequest(tuple(range(length)), (0,), SamplingParams(), 1)
        sequence = Sequence(Ticket(request, lambda ticket: None), request, list(range(length)), computed=computed)
        sequence.pages = [free.pop() for _ in range(-(-length // page_size))]
        context = torch.randn(length, 2, kv_heads, dim)
        slots = torch.tensor([sequence.pages[at // page_size] * page_size + at % page_size for at in range(computed)])
        write_kv(rows, *context[:computed].unbind(1), slots.long() + layer * page_size)
        chunks.append(Chunk(sequence, count))
        contexts.append(context)
    layout = KVLayout.equal(2, page_size, kv_heads, dim, torch.float32)
    batch = build(chunks, layout, heads // kv_heads, free.pop(), "cpu")
    query = torch.randn(len(batch.tokens), heads, dim)
    row = 0
    for (count, computed), context in zip(LENGTHS, contexts, strict=True):
        write_kv(rows, *context[computed:].unbind(1), batch.slots[layer][row : row + count])
        row += count
    scoring = Scoring(dim**-0.5, window, softcap, torch.linspace(-1, 3, heads) if sinks else None)
    out = paged_attention(query, rows, layer, batch.groups, scoring)
    row = 0
    for (count, _), context in zip(LENGTHS, contexts, strict=True):
        expected = plain(query[row : row + count], *context.unbind(1), scoring)
        assert torch.allclose(out[row : row + count], expected, atol=1e-5)
        row += count
