"""The kernels compiled for the CPU against their torch twins, and the bits of a query in any batch."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn.functional import gelu, silu

from qpdsl.executor.engine.step.sampler import NEAR_TIE_GAP, sample
from qpdsl.executor.kernels.data import kv_rows
from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.llvm import layer
from qpdsl.executor.kernels.llvm import sample as sample_kernels
from qpdsl.executor.kernels.llvm.cache import HeadShape
from qpdsl.executor.kernels.llvm.layer import LayerKernels, LayerShape
from qpdsl.executor.kernels.llvm.sample import RowSampler
from qpdsl.executor.kernels.plain import reference
from qpdsl.executor.requests.request import SamplingParams
from tests.support.executor.paged_case import LAYERS, make_batch, make_rows, page_tables

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the cases live on the GPU")

CONTEXTS = [1, 16, 17, 40, 0, 90, 23]
QUERIES = [1, 1, 1, 1, 0, 60, 5]


def kernels(
    heads: HeadShape,
    window: int | None = None,
    head_epsilon: float | None = None,
    activation: layer.Activation = "silu",
    size: int = 96,
) -> LayerKernels:
    scoring = ((heads.dim**-0.5, None), (heads.dim**-0.5, window))
    return LayerKernels(LayerShape(heads, size, size, activation, 1e-5, head_epsilon, scoring))


def case(heads: HeadShape) -> tuple[KVRows, PagedBatch, torch.Tensor]:
    """Rows full of keys and values, a batch over them, and the joined projections of its queries."""
    generator = torch.Generator().manual_seed(5)
    tables, count = page_tables(CONTEXTS, heads.page_size, generator, [(1, 3, 5)])
    rows = make_rows(count, heads.page_size, heads.kv_heads, heads.dim, torch.float32, heads.kind, generator)
    batch = make_batch(CONTEXTS, QUERIES, tables, heads.page_size, 4)
    return rows, batch, torch.randn(sum(QUERIES), heads.joined, generator=generator)


def split(joined: torch.Tensor, heads: HeadShape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [T, H, D] as the twin takes them, keys and values [T, KV, D]."""
    count = len(joined)
    queries = joined[:, : heads.queries].view(count, heads.fold, heads.kv_heads, heads.dim)
    rest = joined[:, heads.queries :].view(count, 2, heads.kv_heads, heads.dim)
    return queries.transpose(1, 2).flatten(1, 2), rest[:, 0], rest[:, 1]


def copied(rows: KVRows) -> KVRows:
    if rows.kind == "plain":
        return KVRows.plain(rows.data.clone())
    return KVRows.quantized(rows.data.clone(), rows.kind, rows.page_size, rows.kv_heads, rows.dim)


def stored(rows: KVRows) -> torch.Tensor:
    """The numbers in the rows, in float32."""
    if rows.kind == "plain":
        return rows.data
    return kv_rows.dequantize(*rows.split(), rows.kind)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_eight_bits_are_those_of_the_twin(kind: RowKind) -> None:
    heads = HeadShape(1, 2, 64, 16, kind)
    rows, batch, joined = case(heads)
    expected = copied(rows)
    # These rotations do nothing, so the stored bits are those of the twin.
    identity = torch.ones(50, 1, 32, dtype=torch.complex64)
    joined *= torch.logspace(3, -33, len(joined))[:, None]
    joined[0, ::3], joined[1] = 0, 0
    _, keys, values = split(joined, heads)
    reference.store(expected, keys, values, batch.slots, 1)
    positions = torch.zeros(len(joined), dtype=torch.int64)
    kernels(heads).store(joined, identity, positions, batch, rows.data, None, 1)
    assert torch.equal(rows.data, expected.data)
    joined[2, heads.queries + 7] = float("nan")
    kernels(heads).store(joined, identity, positions, batch, rows.data, None, 1)
    place, page = int(batch.slots[2]) % heads.page_size, int(batch.slots[2]) // heads.page_size + 1
    assert rows.split()[1][page, place, 0].isnan().tolist() == [True, False]


def attended(
    compiled: LayerKernels, heads: HeadShape, rows: KVRows, batch: PagedBatch, joined: torch.Tensor
) -> torch.Tensor:
    out = torch.zeros(len(joined), heads.queries)
    compiled.attend(joined, batch, rows.data, out, LAYERS - 1)
    return out


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize(
    "heads",
    [
        HeadShape(1, 2, 32, 16),
        HeadShape(4, 2, 32, 16),
        HeadShape(3, 1, 80, 16),
        HeadShape(7, 2, 64, 32),
        HeadShape(2, 3, 48, 8),
        HeadShape(24, 1, 16, 16),
        HeadShape(8, 1, 128, 16),
        HeadShape(4, 2, 32, 16, "int8"),
        HeadShape(7, 2, 64, 16, "fp8"),
        HeadShape(1, 3, 80, 16, "fp8"),
    ],
    ids=str,
)
def test_attention_agrees_with_the_twin(
    heads: HeadShape, window: int | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer, "vector_width", lambda: width)
    if heads.page_size % (width // heads.block(width)):
        with pytest.raises(LookupError):
            kernels(heads, window)
        return
    rows, batch, joined = case(heads)
    attention = attended(kernels(heads, window), heads, rows, batch, joined)
    query = split(joined, heads)[0]
    expected = reference.attention(query, rows, batch, LAYERS - 1, Scoring(heads.dim**-0.5, window))
    expected = expected.view(-1, heads.kv_heads, heads.fold, heads.dim).transpose(1, 2).flatten(1)
    torch.testing.assert_close(attention, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "int8", "fp8"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_bits_of_a_query_do_not_depend_on_the_batch(threads: int, kind: RowKind) -> None:
    heads = HeadShape(4, 2, 32, 16, kind)
    rows, batch, joined = case(heads)
    compiled, before = kernels(heads), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        together = attended(compiled, heads, rows, batch, joined)
    finally:
        torch.set_num_threads(before)
    starts, contexts = batch.query_start.tolist(), batch.context.tolist()
    for sequence, (begin, end) in enumerate(pairwise(starts)):
        for row in range(begin, end):
            context = torch.tensor([contexts[sequence] - (end - 1 - row)], dtype=torch.int32)
            pages = batch.pages[sequence : sequence + 1].contiguous()
            start = torch.tensor([0, 1], dtype=torch.int32)
            lone = PagedBatch(pages, context, batch.slots[:1], start, 1, int(context))
            assert torch.equal(attended(compiled, heads, rows, lone, joined[row : row + 1])[0], together[row])


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("kind", ["plain", "int8", "fp8"])
def test_queries_and_keys_are_rotated_and_stored_in_their_slots(normed: bool, kind: RowKind) -> None:
    heads = HeadShape(3, 2, 32, 16, kind)
    rows, batch, joined = case(heads)
    expected_rows = copied(rows)
    # Magnitudes from 1 down to where eight bits round to zero, and a row of zeros.
    joined *= torch.logspace(0, -6, len(joined))[:, None]
    joined[5] = 0
    generator = torch.Generator().manual_seed(1)
    positions = torch.randint(0, 50, (len(joined),), generator=generator)
    angles = torch.rand(50, 1, 16, generator=generator)
    rotations = torch.polar(torch.ones_like(angles), angles)
    weights = torch.rand(4 * heads.kv_heads, heads.dim, generator=generator)
    turned = joined.clone()[:, : 4 * heads.kv_heads * heads.dim].view(len(joined), -1, heads.dim)
    if normed:
        turned = torch.rms_norm(turned, [heads.dim], None, 1e-6) * weights
    turned = torch.view_as_real(torch.view_as_complex(turned.unflatten(-1, (-1, 2))) * rotations[positions]).flatten(1)
    expected = torch.cat((turned, joined[:, turned.shape[1] :]), dim=1)
    _, keys, values = split(expected, heads)
    reference.store(expected_rows, keys, values, batch.slots, 1)
    compiled = kernels(heads, head_epsilon=1e-6 if normed else None)
    compiled.store(joined, rotations, positions, batch, rows.data, weights if normed else None, 1)
    queries = slice(0, heads.queries)
    torch.testing.assert_close(joined[:, queries], expected[:, queries], rtol=1e-5, atol=1e-6)
    values_stored, wanted = stored(rows), stored(expected_rows)
    if kind == "plain":
        torch.testing.assert_close(values_stored, wanted, rtol=1e-5, atol=1e-6)
    else:
        # The last bit of a rotation may seldom change what a number is rounded to.
        assert (~torch.isclose(values_stored, wanted, rtol=1e-5, atol=1e-30)).float().mean() < 1e-3
        torch.testing.assert_close(values_stored, wanted, rtol=0.13, atol=1e-6 if kind == "fp8" else 0.03)


@pytest.mark.parametrize("size", [32, 96, 20])
def test_norm_agrees_with_torch(size: int) -> None:
    compiled = kernels(HeadShape(1, 1, 32, 16), size=size)
    hidden, weight = torch.randn(9, size), torch.randn(size)
    out = torch.empty_like(hidden)
    compiled.norm(hidden, weight, out)
    torch.testing.assert_close(out, torch.rms_norm(hidden, [size], weight, 1e-5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_gate_agrees_with_torch_over_the_whole_range_of_float32(activation: layer.Activation) -> None:
    compiled = kernels(HeadShape(1, 1, 32, 16), activation=activation)
    gates = torch.cat((torch.linspace(-120, 120, 80), torch.tensor([0.0, 1e30, -1e30, 3e-39]))).repeat(8)[: 7 * 96]
    gates = gates.view(7, 96)
    ups = torch.randn(7, 96)
    out = torch.empty(7, 96)
    compiled.gate(torch.cat((gates, ups), dim=1), out)
    act = silu(gates) if activation == "silu" else gelu(gates, approximate="tanh")
    torch.testing.assert_close(out, act * ups, rtol=1e-5, atol=1e-6)


def test_nan_stays_nan() -> None:
    compiled = kernels(HeadShape(1, 1, 32, 16))
    out = torch.empty(1, 96)
    compiled.gate(torch.full((1, 192), float("nan")), out)
    assert out.isnan().all()


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("vocabulary", [3, 64, 101, 5003])
def test_draws_are_those_of_the_sampler(vocabulary: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_kernels, "vector_width", lambda: width)
    draw = RowSampler(vocabulary)
    generator = torch.Generator().manual_seed(vocabulary)
    rows, rng = 60, random.Random(vocabulary)
    logits = torch.randn(rows, vocabulary, generator=generator) * torch.logspace(-1, 1.5, rows)[:, None]
    logits[::7, 1:] = float("-inf")
    logits[3, :2] = logits[3].max() + 1
    temperatures = [rng.choice([0.0, 0.3, 1.0, 2.5]) for _ in range(rows - 4)] + [0.0] * 4
    temperatures[3] = 0.0
    keys = [rng.getrandbits(64) for _ in range(rows)]
    positions = [rng.randrange(1 << 20) for _ in range(rows)]
    expected = sample(logits, [SamplingParams(temperature) for temperature in temperatures], keys, positions)
    arguments = torch.tensor(temperatures), torch.from_numpy(np.array(keys, dtype=np.uint64).view(np.int64))
    tokens, logprobs, gaps = draw(logits, *arguments, torch.tensor(positions))
    assert torch.equal(tokens, expected.tokens)
    assert torch.equal(gaps < NEAR_TIE_GAP, expected.near_ties)
    torch.testing.assert_close(logprobs, expected.logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("vocabulary", [64, 65])
def test_logits_that_are_not_numbers_give_no_log_probability(vocabulary: int) -> None:
    logits = torch.zeros(3, vocabulary)
    logits[0, 5], logits[1] = float("nan"), float("-inf")
    zeros = torch.zeros(3, dtype=torch.int64)
    tokens, logprobs, _ = RowSampler(vocabulary)(logits, torch.ones(3), zeros, zeros)
    assert logprobs.isfinite().tolist() == [False, False, True]
    assert tokens.max() < vocabulary


def test_shapes_without_vectors_are_refused() -> None:
    with pytest.raises(LookupError):
        kernels(HeadShape(1, 1, 32, 16), size=30)
