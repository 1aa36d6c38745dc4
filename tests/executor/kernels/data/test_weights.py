"""What is done to weights as a checkpoint holds them keeps every value, to the bit."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qpdsl.executor.kernels.data.weights import (
    FLOATS,
    FloatWeight,
    GroupedWeight,
    LateGroupedWeight,
    Weight,
    joined,
    stacked,
)

INPUTS = 128


@st.composite
def grouped(draw: st.DrawFn) -> GroupedWeight:
    """Numbers in groups: blocks of one group or of several, with and without offsets, as checkpoints have them."""
    outputs, bits = draw(st.integers(1, 4)), draw(st.sampled_from([4, 8]))
    group = draw(st.sampled_from([16, 32, 64, INPUTS]))
    blocks = [size for size in (group, 64, INPUTS) if size >= group]
    block = draw(st.sampled_from(blocks))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))

    def whole(low: int, high: int, columns: int) -> torch.Tensor:
        return torch.randint(low, high, (outputs, columns), generator=generator, dtype=torch.int8)

    def floats() -> torch.Tensor:
        return torch.randn(outputs, INPUTS // block, generator=generator)

    two_levels, shifted = block > group or draw(st.booleans()), draw(st.booleans())
    return GroupedWeight(
        whole(0, 16, INPUTS) if bits == 4 else whole(-128, 127, INPUTS),
        bits,
        floats(),
        floats() if shifted else None,
        group,
        whole(-128, 127, INPUTS // group) if two_levels else None,
        whole(0, 64, INPUTS // group) if two_levels and shifted and draw(st.booleans()) else None,
    )


@st.composite
def floats(draw: st.DrawFn) -> FloatWeight:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    values = torch.randn(draw(st.integers(1, 4)), INPUTS, generator=generator)
    return FloatWeight(values.to(draw(st.sampled_from(FLOATS))))


WEIGHTS = st.one_of(grouped(), floats())


@given(WEIGHTS, st.data())
@settings(max_examples=30)
def test_select_takes_outputs(weight: Weight, data: st.DataObject) -> None:
    outputs = torch.tensor(data.draw(st.lists(st.integers(0, weight.shape[0] - 1), min_size=1, max_size=6)))
    assert torch.equal(weight.select(outputs).dequantized(), weight.dequantized()[outputs])


@given(WEIGHTS, st.sampled_from([8, 16, 32, 64, 128]), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_select_inputs_takes_heads(weight: Weight, width: int, random: Random) -> None:
    """Heads of any width may be wider or narrower than groups and blocks."""
    heads = list(range(INPUTS // width))
    random.shuffle(heads)
    inputs = torch.arange(INPUTS).view(-1, width)[heads].flatten()
    selected = weight.select_inputs(inputs)
    assert torch.equal(selected.dequantized(), weight.dequantized()[:, inputs])
    if isinstance(weight, GroupedWeight) and isinstance(selected, GroupedWeight):
        assert selected.bits == weight.bits
        assert selected.group == weight.group or width % weight.group


def test_select_inputs_keeps_blocks_that_move_whole() -> None:
    scales, codes = torch.tensor([[0.5, 2.0]]), torch.arange(128, dtype=torch.int8)[None]
    weight = GroupedWeight(codes, 8, scales, None, 32, torch.tensor([[1, 2, 3, 4]], dtype=torch.int8))
    moved = weight.select_inputs(torch.arange(128).roll(64))
    assert (moved.group, moved.block) == (32, 64)
    assert moved.scales.tolist() == [[2.0, 0.5]] and moved.scale_codes is not None
    assert moved.scale_codes.tolist() == [[3, 4, 1, 2]]


def test_inputs_within_a_group_may_change_places() -> None:
    """So rows with one scale take any order."""
    weight = GroupedWeight(torch.arange(64, dtype=torch.int8)[None], 8, torch.tensor([[0.25]]), None, 64)
    inputs = torch.arange(64).flip(0)
    selected = weight.select_inputs(inputs)
    assert selected.group == 64
    assert torch.equal(selected.dequantized(), weight.dequantized()[:, inputs])


def test_groups_are_not_taken_apart_to_the_last_input() -> None:
    weight = GroupedWeight(torch.zeros(1, 64, dtype=torch.int8), 8, torch.ones(1, 2), None, 32)
    with pytest.raises(ValueError, match="groups of 32"):
        weight.select_inputs(torch.arange(64).view(2, 32).t().flatten())


@given(st.one_of(st.lists(grouped(), min_size=1, max_size=3), st.lists(floats(), min_size=1, max_size=3)))
@settings(max_examples=30)
def test_joined_follow_each_other(weights: list[Weight]) -> None:
    whole = joined(weights)
    assert torch.equal(whole.dequantized(), torch.cat([weight.dequantized() for weight in weights]))
    if isinstance(whole, GroupedWeight):
        assert whole.bits == max(weight.bits for weight in weights if isinstance(weight, GroupedWeight))
    else:
        types = {weight.values.dtype for weight in weights if isinstance(weight, FloatWeight)}
        assert whole.values.dtype == (types.pop() if len(types) == 1 else torch.float32)


def test_joined_blocks_of_one_size_stay_blocks() -> None:
    """Q4_K beside Q6_K: 4 bits in groups of 32 with offsets, and 8 bits in groups of 16 without."""
    codes, scales = torch.ones(2, 256, dtype=torch.int8), torch.ones(2, 1)
    few, many = torch.full((2, 8), 3, dtype=torch.int8), torch.full((2, 16), 5, dtype=torch.int8)
    whole = joined(
        [GroupedWeight(codes, 4, scales, scales, 32, few, few), GroupedWeight(codes, 8, scales, None, 16, many)]
    )
    assert isinstance(whole, GroupedWeight)
    assert (whole.bits, whole.group, whole.block) == (8, 16, 256)
    assert whole.dequantized()[:, 0].tolist() == [6.0, 6.0, 5.0, 5.0]


def test_what_has_no_common_form_is_not_joined() -> None:
    weight = GroupedWeight(torch.zeros(1, 32, dtype=torch.int8), 8, torch.ones(1, 1), None, 32)
    with pytest.raises(ValueError, match="no common form"):
        joined([weight, FloatWeight(torch.zeros(1, 32))])
    with pytest.raises(ValueError, match="different inputs"):
        joined([FloatWeight(torch.zeros(1, 64)), FloatWeight(torch.zeros(1, 32))])


def test_parts_that_do_not_fit_are_no_weights() -> None:
    weight = GroupedWeight(torch.zeros(2, 64, dtype=torch.int8), 8, torch.ones(2, 2), None, 32)
    for changes in (
        {"scales": torch.ones(2, 3)},
        {"group": 24},
        {"bits": 5},
        {"offsets": torch.ones(1, 2)},
        {"group": 16},
    ):
        with pytest.raises(ValueError):
            replace(weight, **changes)
    with pytest.raises(ValueError, match="groups of 24"):
        weight.split(24)


@given(grouped(), st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_a_weight_is_the_same_piece_by_piece(weight: GroupedWeight, size: int) -> None:
    outputs = weight.shape[0]
    pieces = (weight.select(slice(start, start + size)) for start in range(0, outputs, size))
    whole = stacked(pieces, outputs)
    assert whole.parts.keys() == weight.parts.keys()
    assert all(torch.equal(part, weight.parts[name]) for name, part in whole.parts.items())


@given(grouped(), st.data())
@settings(max_examples=30)
def test_weights_that_are_read_late_are_the_same_ones(weight: GroupedWeight, data: st.DataObject) -> None:
    reads: list[None] = []

    def read() -> GroupedWeight:
        reads.append(None)
        return weight

    late = LateGroupedWeight(weight.select(slice(0, 1)), weight.shape[0], read)
    nothing = torch.empty(0, dtype=torch.int64)
    joined([late.select(nothing), weight.select(nothing)])
    assert (late.shape, late.kind, late.block, late.group, late.bits) == (
        weight.shape,
        weight.kind,
        weight.block,
        weight.group,
        weight.bits,
    )
    assert not reads
    outputs = torch.tensor(data.draw(st.lists(st.integers(0, weight.shape[0] - 1), min_size=1, max_size=6)))
    columns = torch.arange(INPUTS).flip(0).view(-1, 16).flip(1).flatten()
    made = [
        (late.select(outputs), weight.select(outputs)),
        (late.select_inputs(columns), weight.select_inputs(columns)),
        (joined([late, late]), joined([weight, weight])),
        (joined([late, late]).select(outputs), joined([weight, weight]).select(outputs)),
    ]
    assert all((ours.shape, ours.kind) == (theirs.shape, theirs.kind) for ours, theirs in made)
    assert not reads
    for ours, theirs in (*made, (late, weight), (late.split(8), weight.split(8)), (late.folded(), weight.folded())):
        assert torch.equal(ours.dequantized(), theirs.dequantized())
