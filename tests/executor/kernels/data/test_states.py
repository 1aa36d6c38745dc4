"""The chains of a step's segments, which threads may run side by side."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.executor.kernels.data.states import FRESH, StateLayout, StatePart, StateRows, StateSegment, StateStep

LAYOUT = StateLayout(((StatePart("conv", (3, 4), torch.float32),),))
BLOCKS = st.integers(0, 5)


@given(st.lists(st.tuples(st.just(FRESH) | BLOCKS, BLOCKS), max_size=8))
def test_chains_are_all_segments_in_their_order_and_touch_no_block_of_each_other(pairs: list[tuple[int, int]]) -> None:
    segments = tuple(StateSegment(*pair, row, 1) for row, pair in enumerate(pairs))
    step = StateStep(StateRows(torch.zeros(6 * LAYOUT.block_bytes, dtype=torch.uint8), LAYOUT), segments)
    bounds = step.chains.tolist()
    assert bounds == sorted({0, *bounds, len(segments)})
    chains = [{block for pair in pairs[first:last] for block in pair} - {FRESH} for first, last in pairwise(bounds)]
    assert sum(map(len, chains)) == len(set().union(*chains))


def test_texts_that_share_no_block_have_a_chain_each() -> None:
    rows = StateRows(torch.zeros(6 * LAYOUT.block_bytes, dtype=torch.uint8), LAYOUT)
    pairs = [(0, 0), (FRESH, 1), (1, 2), (3, 4)]
    step = StateStep(rows, tuple(StateSegment(*pair, row, 1) for row, pair in enumerate(pairs)))
    assert step.chains.tolist() == [0, 1, 3, 4]
