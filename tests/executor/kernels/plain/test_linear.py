"""Linear layers laid out for the CPU: the same products, and bits that do not depend on the number of rows."""

from __future__ import annotations

import pytest
import torch

from qpdsl.executor.kernels.plain.linear import PackedLinear, safe_rows

SHAPES = [(48, 101), (256, 1152), (576, 256), (896, 2500), (40, 1217), (512, 768), (896, 256)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_agrees_with_the_linear_layer_of_the_same_weights(inputs: int, outputs: int, bias: bool) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Linear(inputs, outputs, bias=bias)
    packed = PackedLinear(plain.weight, plain.bias)
    for rows in (1, 2, 63, 64, 65, 130):
        hidden = torch.randn(rows, inputs)
        expected = plain(hidden).detach()
        assert torch.allclose(packed(hidden), expected, atol=1e-4)
        assert torch.allclose(packed(hidden[None])[0], expected, atol=1e-4)
        total = torch.ones(rows, outputs)
        packed.add_to(total, hidden)
        assert torch.allclose(total, expected + 1, atol=1e-4)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_the_bits_of_a_row_do_not_depend_on_the_others(inputs: int, outputs: int, threads: int, bias: bool) -> None:
    torch.manual_seed(0)
    packed = PackedLinear(torch.randn(outputs, inputs), torch.randn(outputs) if bias else None)
    hidden = torch.randn(300, inputs)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        least = safe_rows([packed])
        assert least in (2, 16)
        expected = packed(hidden)
        for rows in (least, least + 1, 31, 64, 65, 129, 200):
            assert torch.equal(packed(hidden[:rows]), expected[:rows])
            assert torch.equal(packed(hidden[-rows:]), expected[-rows:])
    finally:
        torch.set_num_threads(before)
