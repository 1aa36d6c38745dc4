"""A screened head draws what the whole head draws, from few of its panels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qpdsl.executor.kernels.data.weights import FloatWeight
from qpdsl.executor.kernels.llvm import head_screen, panel_head
from qpdsl.executor.kernels.llvm import product as products
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.kernels.llvm.panel_head import HeadPlanner, Numbers, PanelHead
from qpdsl.executor.kernels.llvm.panels import PanelWeights
from qpdsl.executor.kernels.llvm.product import Product

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

INPUTS = 64


@pytest.fixture(autouse=True)
def _small_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel_head, "_SCREENED_BYTES", 0)


def weights_of(kind: str, vocabulary: int, generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(vocabulary, INPUTS, generator=generator)
    if kind == "heavy":
        values = values**5
    elif kind == "equal":
        values[1::2] = values[: vocabulary - 1 : 2][: len(values[1::2])]
    elif kind == "zero":
        values[: vocabulary // 2] = 0.0
    elif kind == "near":
        values = values[:1] + values * 1e-4
    return values


def drawn(
    head: PanelHead, hidden: torch.Tensor, temperature: Numbers, bits: Numbers | None, allowed: Numbers, screened: bool
) -> tuple[torch.Tensor, ...]:
    count = len(temperature)
    rows, keys = np.arange(count) % len(hidden), np.arange(count, dtype=np.int64) * 7919 - 3
    sparse = np.zeros(count, dtype=np.bool_)
    which = np.full(count, screened)
    return head(hidden, rows, temperature, keys, np.arange(count), allowed, sparse, bits, screened=which)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["normal", "heavy", "equal", "zero", "near"])
def test_a_screened_head_draws_the_same(kind: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    rng = np.random.default_rng(5)
    for vocabulary, count, scale, softcap in [(37, 3, 1.0, None), (1030, 12, 0.3, 30.0), (5000, 5, -2.0, None)]:
        weight = weights_of(kind, vocabulary, generator).to(dtype)
        bias = torch.randn(vocabulary, generator=generator) if count == 5 else None
        head = PanelHead(Product(PanelWeights(FloatWeight(weight), vector_width()), bias), scale, softcap)
        hidden = torch.randn(count, INPUTS, generator=generator) * 3
        bits = rng.integers(-(1 << 31), 1 << 31, (2, -(-vocabulary // 32))).astype(np.int32)
        bits[1] &= rng.integers(-(1 << 31), 1 << 31, bits.shape[1]).astype(np.int32)
        temperature = rng.choice([0.0, 0.3, 1.0, 4.0], count).astype(np.float32)
        allowed = rng.integers(-1, 2, count)
        dense, screened = (drawn(head, hidden, temperature, bits, allowed, how) for how in (False, True))
        assert torch.equal(dense[0], screened[0])
        assert torch.equal(dense[2], screened[2])


def test_few_panels_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(20_000, INPUTS, generator=generator)
    head = PanelHead(Product(PanelWeights(FloatWeight(weight), vector_width())))
    listed: list[int] = []
    over = HeadPlanner.over
    monkeypatch.setattr(
        HeadPlanner, "over", lambda self, panels, draws: listed.append(len(panels)) or over(self, panels, draws)
    )
    for temperature in (0.0, 1.0):
        hidden = torch.randn(4, INPUTS, generator=generator)
        drawn(head, hidden, np.full(4, temperature, np.float32), None, np.full(4, -1), True)
    assert len(listed) == 2 and max(listed) < 20_000 // vector_width() // 8


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_WORK", 1)
    generator = torch.Generator().manual_seed(2)
    head = PanelHead(Product(PanelWeights(FloatWeight(torch.randn(3000, INPUTS, generator=generator)), vector_width())))
    hidden, temperature = torch.randn(6, INPUTS, generator=generator), np.full(6, 1.0, np.float32)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(drawn(head, hidden, temperature, None, np.full(6, -1), True))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result[0], results[0][0]) and torch.equal(result[2], results[0][2]) for result in results)


@pytest.mark.parametrize("where", ["hidden", "weights"])
def test_what_is_no_number_is_told(where: str) -> None:
    generator = torch.Generator().manual_seed(3)
    weight, hidden = (torch.randn(count, INPUTS, generator=generator) for count in (500, 1))
    (hidden if where == "hidden" else weight)[-1, 3] = float("nan")
    head = PanelHead(Product(PanelWeights(FloatWeight(weight), vector_width())))
    _, logprobs, _ = drawn(head, hidden, np.zeros(1, np.float32), None, np.full(1, -1), True)
    assert not logprobs.isfinite().any()


def test_the_copy_is_as_far_off_as_it_says() -> None:
    generator = torch.Generator().manual_seed(4)
    weight, hidden = torch.randn(333, INPUTS, generator=generator) ** 3, torch.randn(5, INPUTS, generator=generator)
    panels = PanelWeights(FloatWeight(weight), vector_width())
    copy = head_screen.EightBitCopy(panels)
    width = panels.width
    scales = copy.data[:, : 4 * width].contiguous().view(torch.float32)
    codes = copy.data[:, 4 * width :][:, : INPUTS * width].contiguous().view(torch.int8).view(-1, INPUTS, width)
    rounded = (codes.float() * scales[:, None]).transpose(1, 2).reshape(-1, INPUTS)[:333]
    off = (hidden.double() @ (weight - rounded).double().T).abs()
    allowed = hidden.double().norm(dim=1)[:, None] * copy.errors.flatten()[:333].double()
    assert (off <= allowed).all() and (off.max(dim=0).values > 0).any()
