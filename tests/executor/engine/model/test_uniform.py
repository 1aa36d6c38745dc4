"""Functions of single numbers whose bits depend on neither the place of a number nor the threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import gelu, linear, silu, softplus
from torch.overrides import _get_current_function_mode_stack

from qpdsl.executor.engine.model.rowwise import Uniform, sum_of_products

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "sigmoid": torch.sigmoid,
    "softplus": softplus,
    "power": lambda values: values.abs() ** 1.7,
}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_number_gets_the_same_bits_in_any_company(name: str) -> None:
    uniform = Uniform().around(FUNCTIONS[name])
    values = random(300, 173)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        whole = uniform(values)
    finally:
        torch.set_num_threads(before)
    for part in (slice(0, 1), slice(7, 8), slice(11, 20), slice(299, 300)):
        assert torch.equal(uniform(values[part]), whole[part])
        assert torch.equal(uniform(values[part, 5:9]), whole[part, 5:9])
    torch.testing.assert_close(whole, FUNCTIONS[name](values))


def test_it_ends_with_the_module_that_fails() -> None:
    uniform = Uniform()

    def failing(values: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        uniform.around(failing)(random(3))
    assert not uniform.active and not _get_current_function_mode_stack()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parameter", [True, False])
def test_a_product_with_a_weight_gives_each_row_its_own_bits(parameter: bool, dtype: torch.dtype) -> None:
    rows, weight, bias = random(70, 48).to(dtype), random(10, 48).to(dtype), random(10).to(dtype)
    own = torch.nn.Parameter(weight) if parameter else weight
    product = Uniform().around(lambda part: linear(part, own, bias))
    whole = product(rows)
    assert all(torch.equal(product(rows[at : at + 1]), whole[at : at + 1]) for at in (0, 33, 69))
    expected = rows.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(whole, expected.to(dtype), rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


def test_large_products_are_summed_in_parts() -> None:
    rows, weight = random(9, 2048), random(200, 2048)
    expected = torch.cat([sum_of_products(row[None], weight) for row in rows])
    assert torch.equal(sum_of_products(rows, weight), expected)
