"""Packed linear layers: the product of the weights they were given, and bits of a row that are its own."""

from __future__ import annotations

import sys

import pytest
import torch

from qpdsl.executor.kernels.data.weights import FloatWeight, Weight
from qpdsl.executor.kernels.linear import PackedLinear
from qpdsl.executor.kernels.llvm import compile as compiler
from qpdsl.executor.kernels.llvm import product
from qpdsl.executor.kernels.llvm.compile import vector_width
from tests.support.executor.weights import made, step

SHAPES = ((1,), (5,), (0,), (2, 3), (1, 0), ())


@pytest.fixture(params=["compiled", "no vectors", "no compiler"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How layers are computed."""
    way: str = request.param
    if way == "compiled" and not vector_width():
        pytest.skip("this machine has no vectors")
    if way == "no vectors":
        monkeypatch.setattr(compiler, "vector_width", lambda: 0)
    elif way == "no compiler":
        monkeypatch.setitem(sys.modules, "qpdsl.executor.kernels.llvm.compile", None)
    return way


def packed(weight: Weight, bias: torch.Tensor | None, way: str) -> PackedLinear:
    layer = PackedLinear(weight, bias)
    assert (layer.product is not None) == (way == "compiled")
    return layer


@pytest.mark.parametrize("form", ["float32", "bfloat16", "float16", "Q8_0", "Q4_K"])
def test_it_is_the_linear_layer_of_the_weights(form: str, way: str) -> None:
    outputs, inputs = 37, max(96, step(form))
    weight = made(form, outputs, inputs)
    values, bias = weight.dequantized(), torch.randn(outputs)
    layer, without = packed(weight, bias, way), packed(weight, None, way)
    assert (layer.out_features, layer.in_features, layer.kind) == (outputs, inputs, weight.kind)
    for shape in SHAPES:
        hidden = torch.randn(*shape, inputs)
        exact = hidden.double() @ values.double().t()
        for own, expected in ((layer, exact + bias), (without, exact)):
            out = own(hidden)
            assert out.shape == (*shape, outputs) and out.dtype == torch.float32
            torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=3e-5)
    assert without.bias is None and layer.bias is not None and torch.equal(layer.bias, bias)
    ids = torch.tensor([36, 0, 0])
    assert torch.equal(layer.rows(ids), values[ids])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_hidden_states_keep_their_type_and_are_computed_in_float32(dtype: torch.dtype, way: str) -> None:
    layer = packed(made("float16", 40, 64), torch.randn(40), way)
    hidden = torch.randn(6, 64).to(dtype)
    out = layer(hidden)
    assert out.dtype == dtype and torch.equal(out, layer(hidden.float()).to(dtype))


def test_hidden_states_may_lie_anyhow_in_memory(way: str) -> None:
    layer = packed(made("float32", 20, 48), None, way)
    wide = torch.randn(6, 100)
    for hidden in (wide[:, 3:51], wide[::2, :48], wide.t()[:48].t(), wide[:1, :48].expand(4, 48), wide[:, ::2][:, :48]):
        assert torch.equal(layer(hidden), layer(hidden.clone()))


def test_inputs_that_panels_cannot_hold_are_computed_by_torch() -> None:
    weight = made("int8 by row", 7, 12)
    layer, hidden = PackedLinear(weight), torch.randn(3, 12)
    assert layer.product is None
    torch.testing.assert_close(layer(hidden), hidden @ weight.dequantized().t())


def test_the_weights_may_change_afterwards(way: str) -> None:
    values = torch.randn(9, 16)
    layer = packed(FloatWeight(values), None, way)
    hidden = torch.randn(2, 16)
    before = layer(hidden)
    values.zero_()
    assert torch.equal(layer(hidden), before)


@pytest.mark.parametrize("form", ["float32", "bfloat16", "Q4_K"])
def test_the_bits_of_a_row_do_not_depend_on_the_others(form: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "_WORK", 1 << 12)
    layer = packed(made(form, 217, 256), torch.randn(217), way)
    hidden, before = torch.randn(70, 256), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            whole = layer(hidden)
            for first, last in ((0, 1), (3, 4), (0, 2), (5, 12), (17, 33), (1, 70)):
                assert torch.equal(layer(hidden[first:last]), whole[first:last])
            results.append(whole)
    finally:
        torch.set_num_threads(before)
    # Nothing is known of the threads of another library.
    assert way != "compiled" or torch.equal(*results)
