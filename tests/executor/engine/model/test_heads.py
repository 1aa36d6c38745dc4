"""Heads as a GPU computes them: how many products, and in which type they stay."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.nn.functional import relu
from torch.utils._python_dispatch import TorchDispatchMode

from qpdsl.executor.engine.model import heads
from qpdsl.executor.engine.model.heads import LogitHead, ValueHead
from tests.support.executor.models import random_model


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.mv, torch.ops.aten.addmv):
            matrices = [arg for arg in args if isinstance(arg, torch.Tensor)][-2:]
            self.shapes.append(tuple(matrices[0].shape))
        return func(*args, **(kwargs or {}))


def layers() -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(24, 24, generator=generator), torch.randn(24, generator=generator)),
        (torch.randn(2, 24, generator=generator), None),
    ]


@pytest.mark.parametrize(("count", "pieces"), [(1, 1), (8, 1), (9, 2), (30, 4)])
def test_values_are_products_of_one_shape(count: int, pieces: int) -> None:
    """So no value of a library's kernel for that shape depends on how many are asked for."""
    hidden = torch.randn(count, 24, generator=torch.Generator().manual_seed(count))
    head = ValueHead(layers(), at_once=8)
    with Products() as products:
        values = head.dense(hidden)
    assert products.shapes == [(8, 24)] * 2 * pieces
    (first, bias), (last, _) = layers()
    wanted = relu(hidden @ first.T + bias) @ last.T
    torch.testing.assert_close(values, wanted)
    torch.testing.assert_close(head.gather(hidden, torch.tensor([1])), wanted[:, 1:])
    torch.testing.assert_close(ValueHead(layers()).dense(hidden), wanted)


def test_a_value_on_a_cpu_has_the_same_bits_in_any_batch() -> None:
    hidden = torch.randn(9, 24, generator=torch.Generator().manual_seed(1))
    head = ValueHead(layers())
    together = head.dense(hidden)
    for row in range(9):
        assert torch.equal(head.dense(hidden[row:][:1])[0], together[row])


@pytest.mark.parametrize("biased", [False, True])
def test_logits_are_not_rounded_to_16_bits_where_a_device_keeps_its_sums(
    biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = deepcopy(random_model("gemma2")).to(torch.bfloat16)
    projection = model.get_output_embeddings()
    assert isinstance(projection, torch.nn.Linear)
    if biased:
        monkeypatch.setattr(projection, "bias", torch.nn.Parameter(torch.randn(projection.out_features).bfloat16()))
    head = LogitHead(model)
    hidden = torch.randn(5, projection.in_features, generator=torch.Generator().manual_seed(2)).bfloat16()
    exact = hidden.float() @ projection.weight.float().T
    exact = head._finish(exact + projection.bias.float() if biased else exact)
    with torch.inference_mode():
        rounded = head.dense(hidden)
    product = torch.mm

    def wide(a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype) -> torch.Tensor:
        assert a.dtype == b.dtype == torch.bfloat16 and a is hidden
        return product(a.to(out_dtype), b.to(out_dtype))

    monkeypatch.setattr(heads, "_sums_stay_wide", lambda hidden, layer: True)
    monkeypatch.setattr(torch, "mm", wide)
    with torch.inference_mode():
        kept = head.dense(hidden)
    assert kept.dtype == torch.float32
    torch.testing.assert_close(kept, exact, rtol=0, atol=1e-5)
    assert (rounded - exact).abs().max() > 1e-3


def test_only_products_of_16_bits_on_a_device_that_can_stay_wide() -> None:
    layer = torch.nn.Linear(4, 4).bfloat16()
    assert not heads._sums_stay_wide(torch.zeros(2, 4, dtype=torch.bfloat16), layer)
    # The operator is there, with the argument by this name.
    shape = torch.ops.aten.mm.dtype
    assert [argument.name for argument in shape._schema.arguments] == ["self", "mat2", "out_dtype"]
    meta = torch.mm(torch.zeros(2, 4, device="meta").bfloat16(), layer.weight.to("meta").t(), out_dtype=torch.float32)
    assert meta.dtype == torch.float32
