"""The compiled matrix product over weights in panels: its numbers, and the bits of a row in any batch and any share."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qpdsl.executor.kernels.data.weights import GroupedWeight, Weight
from qpdsl.executor.kernels.llvm import product
from qpdsl.executor.kernels.llvm.compile import multiplies_pairs, vector_width
from qpdsl.executor.kernels.llvm.matmul_code import panels_at_once, prepared_numbers
from qpdsl.executor.kernels.llvm.panels import FloatPanels, PanelWeights
from qpdsl.executor.kernels.llvm.product import MatmulCode, Product, parts
from tests.support.executor.weights import FORMS, is_four_bits, made, step

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

# Every way of storing floats and codes at every width; the rest, which differs in sizes, at that of the machine.
_EACH_WIDTH = ("float32", "bfloat16", "float16", "Q4_K", "Q6_K", "int4 by 8")
CASES = [
    (form, width)
    for width in (4, 8, 16)
    for form in (FORMS if width == vector_width() else _EACH_WIDTH)
    # Vectors of 16 look four-bit codes up by an instruction of their own.
    if width < 16 or vector_width() == 16 or not is_four_bits(form)
]
# Inputs are rounded to bfloat16, as weights are.
ROUNDED = "bfloat16 in pairs"
CASES += [(ROUNDED, 16)] if multiplies_pairs() else []
UNTOUCHED = -12345.0


def inputs_of(form: str, least: int = 72) -> int:
    """A number of inputs of several groups, and no more of them than it takes."""
    least_step = 16 if form == ROUNDED else step(form)
    return -(-least // least_step) * least_step


@cache
def panels_of(form: str, outputs: int, inputs: int, width: int) -> PanelWeights:
    weights = PanelWeights(weight_of(form, outputs, inputs), width)
    if form == ROUNDED:
        weights.panels = FloatPanels(torch.bfloat16, rounded=True)
    return weights


def weight_of(form: str, outputs: int, inputs: int) -> Weight:
    return made("bfloat16" if form == ROUNDED else form, outputs, inputs)


def multiply(
    weights: PanelWeights,
    rows: torch.Tensor,
    bias: torch.Tensor,
    share: tuple[int, int] | None = None,
    factor: float = 1.0,
    onto: torch.Tensor | None = None,
) -> torch.Tensor:
    """The panels of `share`, of all by default; fails where anything else is written, in the rows around them too."""
    count, outputs, width = len(rows), weights.outputs, weights.width
    begin, end = share or (0, weights.count)
    numbers = prepared_numbers(weights.panels, weights.inputs)
    code, prepared = MatmulCode.of(weights.panels, width), torch.full((count * numbers + 1,), UNTOUCHED)
    if numbers:
        code.prepare(rows.data_ptr(), rows.stride(0), prepared.data_ptr(), count, numbers)
    room = torch.full((count + 2, outputs + width), UNTOUCHED)
    if onto is not None:
        room[1:-1, :outputs] = onto
    before = room.clone()
    scale = torch.tensor([factor])
    code.multiply(
        rows.data_ptr(),
        rows.stride(0),
        weights.data.data_ptr(),
        weights.panel_bytes,
        bias.data_ptr(),
        prepared.data_ptr(),
        room[1:].data_ptr(),
        room.stride(0),
        count,
        weights.inputs,
        outputs,
        begin,
        end,
        scale.data_ptr(),
        int(onto is not None),
    )
    written = torch.zeros_like(room, dtype=torch.bool)
    written[1:-1, begin * width : min(end * width, outputs)] = True
    assert torch.equal(room[~written], before[~written]) and prepared[-1] == UNTOUCHED
    return room[1:-1, :outputs]


def magnitudes(weight: Weight) -> torch.Tensor:
    """float64 [out, in]: no number that is added up for a weight is larger."""
    if not isinstance(weight, GroupedWeight):
        return weight.dequantized().double().abs()
    scales, offsets = weight.group_scales(), weight.group_offsets()
    sizes = weight.codes.double().abs() * scales.double().abs().repeat_interleave(weight.group, 1)
    return sizes if offsets is None else sizes + offsets.double().abs().repeat_interleave(weight.group, 1)


@pytest.mark.parametrize(("form", "width"), CASES)
def test_it_computes_in_float32_what_the_numbers_stand_for(form: str, width: int) -> None:
    tile, inputs = panels_at_once(width) * width, inputs_of(form)
    generator = torch.Generator().manual_seed(1)
    large = 2 * tile + width + 3
    for outputs, counts in ((1, (1,)), (width - 1, (2, 5)), (tile, (3, 8)), (large, (*range(1, 14), 64))):
        weight, weights = weight_of(form, outputs, inputs), panels_of(form, outputs, inputs, width)
        values, sizes = weight.dequantized().double(), magnitudes(weight)
        bias = torch.randn(outputs, generator=generator)
        for count in counts:
            rows = torch.randn(count, inputs, generator=generator)
            out = multiply(weights, rows, bias)
            if form == ROUNDED:
                rows = rows.bfloat16().float()
            wrong = (out.double() - rows.double() @ values.t() - bias).abs()
            # A wrong input or weight would show as some 1e-3 of it.
            assert (wrong / (rows.double().abs() @ sizes.t() + bias.abs())).max() < 3e-6


@pytest.mark.parametrize(("form", "width"), CASES)
def test_the_weights_come_back_as_they_were(form: str, width: int) -> None:
    outputs, inputs = 2 * width + 3, inputs_of(form)
    weights, values = panels_of(form, outputs, inputs, width), weight_of(form, outputs, inputs).dequantized()
    for ids in (torch.arange(outputs), torch.tensor([outputs - 1, 0, 0, width]), torch.empty(0, dtype=torch.int64)):
        assert torch.equal(weights.rows(ids), values[ids])


def test_more_outputs_than_are_laid_out_at_once_are_all_there() -> None:
    outputs = 256 * 4 + 7
    weights, values = panels_of("int4 by 8", outputs, 32, 4), made("int4 by 8", outputs, 32).dequantized()
    assert torch.equal(weights.rows(torch.arange(outputs)), values)


@given(data=st.data())
@settings(max_examples=20)
def test_the_bits_of_an_output_depend_on_its_row_alone(data: st.DataObject) -> None:
    form, width = data.draw(st.sampled_from(CASES))
    # The code for groups that are a whole row is made for one number of inputs.
    inputs = inputs_of(form, 72 if form == "int8 by row" else data.draw(st.sampled_from([8, 40, 136, 1544])))
    weights = panels_of(form, data.draw(st.sampled_from([1, width + 1, 4 * width, 11 * width - 2])), inputs, width)
    # More rows than a block has, and more inputs, now and then.
    count = data.draw(st.one_of(st.integers(1, 20), st.sampled_from([97, 130])))
    generator = torch.Generator().manual_seed(count)
    # Rows need not follow each other at once.
    rows = torch.randn(count, inputs + 3, generator=generator)[:, :inputs]
    bias = torch.randn(weights.outputs, generator=generator)
    together = multiply(weights, rows, bias)
    row = data.draw(st.integers(0, count - 1))
    assert torch.equal(multiply(weights, rows[row : row + 1], bias)[0], together[row])
    first, last = sorted((row, data.draw(st.integers(0, count))))
    if first < last:
        assert torch.equal(multiply(weights, rows[first:last], bias), together[first:last])
    cuts = sorted(data.draw(st.lists(st.integers(0, weights.count), max_size=3)))
    for begin, end in pairwise((0, *cuts, weights.count)):
        columns = slice(begin * width, min(end * width, weights.outputs))
        assert torch.equal(multiply(weights, rows, bias, (begin, end))[:, columns], together[:, columns])


@pytest.mark.parametrize("form", ["float32", "Q6_K"])
def test_a_row_that_is_no_number_spoils_no_other(form: str) -> None:
    inputs = inputs_of(form)
    weights = panels_of(form, 40, inputs, 8)
    rows, bias = torch.randn(7, inputs), torch.zeros(40)
    expected = multiply(weights, rows, bias)
    rows[3] = float("nan")
    spoilt = multiply(weights, rows, bias)
    others = [0, 1, 2, 4, 5, 6]
    assert spoilt[3].isnan().all() and torch.equal(spoilt[others], expected[others])


@pytest.mark.parametrize("form", ["bfloat16", "Q4_K"])
def test_it_adds_to_what_is_there_times_a_factor(form: str) -> None:
    inputs = inputs_of(form)
    weights = panels_of(form, 53, inputs, 4)
    rows, bias, onto = torch.randn(5, inputs), torch.randn(53), torch.randn(5, 53)
    alone = multiply(weights, rows, bias)
    torch.testing.assert_close(multiply(weights, rows, bias, factor=0.25), 0.25 * alone, rtol=0, atol=0)
    # One rounding, of factor · sum + onto.
    exact = (0.25 * alone.double() + onto.double()).float()
    assert torch.equal(multiply(weights, rows, bias, factor=0.25, onto=onto), exact)


def test_what_panels_cannot_hold_is_refused() -> None:
    codes = torch.zeros(3, 24, dtype=torch.int8)
    for weight in (made("float32", 3, 12), GroupedWeight(codes, 8, torch.ones(3, 6), None, 4)):
        with pytest.raises(LookupError):
            PanelWeights(weight, 4)


@pytest.mark.parametrize("form", FORMS)
def test_the_threads_change_no_bit(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "_WORK", 1)
    inputs, before = inputs_of(form), torch.get_num_threads()
    layer = Product(PanelWeights(made(form, 301, inputs), vector_width()), torch.randn(301))
    rows = torch.randn(9, inputs)
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results += [layer(rows), torch.cat([layer(row) for row in rows.split(1)])]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results[1:])


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4))
def test_threads_share_the_panels_out_in_whole_tiles(count: int, threads: int, tile: int) -> None:
    bounds = parts(count, threads, tile)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, count, threads + 1)
    assert bounds == sorted(bounds) and all(bound % tile == 0 for bound in bounds[:-1])
