"""Compiled attention over paged KV against its torch twin, and the bits of a query in any batch and any share of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from qpdsl.executor.kernels.data.kv_rows import RowKind
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.llvm.cache import HeadShape
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.kernels.plain import reference
from tests.support.executor.compiled import LayerKernels, case, split
from tests.support.executor.paged_case import LAYERS

pytestmark = pytest.mark.skipif(torch.cuda.is_available() or not vector_width(), reason="no case for a CPU's vectors")

SHAPES = [
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
    HeadShape(4, 2, 64, 16, "int4"),
    HeadShape(3, 1, 48, 16, "int4"),
    HeadShape(3, 2, 32, 16, dtype=torch.bfloat16),
    HeadShape(2, 1, 80, 16, dtype=torch.float16),
]
LAYER = LAYERS - 1


def reordered(attended: torch.Tensor, heads: HeadShape) -> torch.Tensor:
    """[T, H, D] of the twin in the order of the kernel."""
    return attended.view(-1, heads.kv_heads, heads.fold, heads.dim).transpose(1, 2).flatten(1)


# The vectors of other machines, over one shape of each kind of rows.
NARROW = [SHAPES[number] for number in (2, 7, 8, 11, 12)]
CASES = [
    (heads, width)
    for width in (16, 8, 4)
    for heads in (SHAPES if width == 16 else NARROW)
    if not heads.page_size % (width // heads.block(width))
]


@pytest.mark.parametrize(
    ("heads", "width", "has_sinks"),
    [
        *((*case, False) for case in CASES),
        *((*case, True) for case in CASES if case[0].fold in (3, 24) and case[1] != 8),
    ],
    ids=str,
)
def test_attention_agrees_with_the_twin(heads: HeadShape, width: int, has_sinks: bool) -> None:
    rows, batch, joined = case(heads)
    query = split(joined, heads)[0]
    sinks = torch.linspace(-3, 3, query.shape[1]) if has_sinks else None
    by_fold = None if sinks is None else sinks.view(heads.kv_heads, heads.fold).t().contiguous()
    for window in (None, 1, 20, 500):
        expected = reference.attention(query, rows, batch, LAYER, Scoring(heads.dim**-0.5, window, None, sinks))
        attended = LayerKernels(heads, width).attend(joined, batch, rows, LAYER, window, by_fold)
        torch.testing.assert_close(attended, reordered(expected, heads), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "int8", "fp8", "int4"])
def test_the_bits_of_a_query_do_not_depend_on_the_batch(kind: RowKind) -> None:
    heads = HeadShape(4, 2, 32, 16, kind)
    rows, batch, joined = case(heads)
    kernels = LayerKernels(heads)
    together = kernels.attend(joined, batch, rows, LAYER)
    for threads in (2, 3, 7, 300):
        assert torch.equal(kernels.attend(joined, batch, rows, LAYER, threads=threads), together)
    starts, contexts = batch.query_start.tolist(), batch.context.tolist()
    for sequence, (begin, end) in enumerate(pairwise(starts)):
        for row in range(begin, end):
            context = torch.tensor([contexts[sequence] - (end - 1 - row)], dtype=torch.int32)
            pages = batch.pages[sequence : sequence + 1].contiguous()
            start = torch.tensor([0, 1], dtype=torch.int32)
            lone = PagedBatch(pages, context, batch.slots[:1], start, 1, int(context))
            assert torch.equal(kernels.attend(joined[row : row + 1], lone, rows, LAYER)[0], together[row])
