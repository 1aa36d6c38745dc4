"""What lies between a layer's products: the kernels against their torch twins, and bits of a row that are its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from qpdsl.executor.kernels import layers
from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind
from qpdsl.executor.kernels.data.layer_constants import Activation, Addition, HeadConstants, NormWeights
from qpdsl.executor.kernels.plain import layer_twins
from tests.support.executor.paged_case import DEVICE, LAYERS, make_rows

PAGE = 16
# What rounding in the type and another order of sums make of numbers around 1.
CLOSE: dict[torch.dtype, dict[str, float]] = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
    torch.float16: {"rtol": 3e-3, "atol": 3e-3},
}
# How far a number may lie from another that is rounded to the next step: of int8, of e4m3, of four bits.
STEP: dict[RowKind, dict[str, float]] = {
    "int8": {"rtol": 0.0, "atol": 0.06},
    "fp8": {"rtol": 0.13, "atol": 0.01},
}


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def norm(width: int, epsilon: float = 1e-5) -> NormWeights:
    return NormWeights(1 + 0.2 * numbers(width, seed=9), epsilon)


ADDITIONS: dict[str, tuple[Addition | None, bool]] = {
    "the first norm": (None, True),
    "llama": (Addition(None, None), True),
    "the layers of OLMo 2": (Addition(None, norm(48)), False),
    "all of it": (Addition(numbers(48, seed=7), norm(48, 0.5), 0.3), True),
}


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("case", ADDITIONS)
def test_a_product_joins_the_residual(case: str, dtype: torch.dtype) -> None:
    """Over 19 rows of 48 numbers, of which a program has several, and the last one has too few."""
    addition, normed = ADDITIONS[case]
    residual = numbers(19, 48, dtype=dtype)
    product = None if addition is None else numbers(19, 48, seed=1, dtype=dtype)
    before = norm(48) if normed else None
    mine, twin = residual.clone(), residual.clone()
    hidden = layers.add_norm(mine, product, addition, before)
    expected = layer_twins.add_norm(twin, product, addition, before)
    torch.testing.assert_close(mine, twin, **CLOSE[dtype])
    torch.testing.assert_close(hidden, expected, **CLOSE[dtype])
    if before is None:
        assert hidden is mine
    else:
        # A row that leaves after this layer is normed by itself, and has the same bits.
        assert torch.equal(hidden, layers.add_norm(mine, None, None, before))


@pytest.mark.parametrize("width", [48, 1030])
def test_the_sums_of_a_row_are_its_own(width: int) -> None:
    residual, product = numbers(5, width), numbers(5, width, seed=1)
    addition, before = Addition(None, norm(width)), norm(width)
    alone = [part[2:3].clone() for part in (residual, product)]
    hidden = layers.add_norm(residual, product, addition, before)
    assert torch.equal(layers.add_norm(alone[0], alone[1], addition, before), hidden[2:3])
    assert torch.equal(alone[0], residual[2:3])
    torch.testing.assert_close(hidden, layer_twins.add_norm(residual, None, None, before))


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_gate_replaces_what_it_was_made_of(activation: Activation, dtype: torch.dtype) -> None:
    for width, bias in ((40, numbers(80)), (1100, None)):
        widened = 3 * numbers(5, 2 * width, dtype=dtype)
        # Neither a large number nor a small one may overflow on its way.
        widened[0, :4] = torch.tensor([3e4, -3e4, 90.0, -90.0])
        up, twin = widened[:, width:].clone(), widened.clone()
        gated = layers.gate(widened, bias, activation)
        layer_twins.gate(twin, bias, activation)
        assert gated.data_ptr() == widened.data_ptr() and torch.equal(widened[:, width:], up)
        torch.testing.assert_close(gated, twin[:, :width], **CLOSE[dtype])


@dataclass(frozen=True)
class Case:
    """Rows of one model, and what its heads go through."""

    kind: RowKind
    dtype: torch.dtype
    heads: int
    kv_heads: int
    dim: int
    rotated: int
    bias: bool = False
    norms: bool = False
    whole: bool = False

    @property
    def constants(self) -> HeadConstants:
        made = HeadConstants(self.heads, self.kv_heads, self.dim, epsilon=1e-5, whole=self.whole)
        if self.norms:
            made = replace(made, norms=1 + 0.2 * numbers(self.heads + self.kv_heads, self.dim, seed=4))
        return replace(made, bias=numbers(made.width, seed=5)) if self.bias else made

    @property
    def rotations(self) -> torch.Tensor | None:
        angles = 3 * numbers(90, self.rotated // 2, seed=6)
        return torch.stack((angles.cos(), angles.sin()), dim=-1) if self.rotated else None


CASES = {
    "plain": Case("plain", torch.float32, 4, 2, 12, 12),
    "one token a program": Case("plain", torch.bfloat16, 8, 8, 128, 128),
    "a part is turned, with biases": Case("plain", torch.bfloat16, 7, 1, 80, 40, bias=True),
    "norms of heads": Case("plain", torch.float16, 6, 2, 64, 64, norms=True),
    "norms over all heads": Case("plain", torch.float32, 6, 3, 20, 20, norms=True, whole=True),
    "nothing is done to queries": Case("plain", torch.bfloat16, 4, 4, 32, 0),
    "int8": Case("int8", torch.float32, 6, 3, 32, 32, norms=True),
    "fp8": Case("fp8", torch.bfloat16, 4, 2, 64, 64, bias=True),
}


def stored(case: Case, count: int, where: Any) -> tuple[torch.Tensor, KVRows, torch.Tensor]:
    """Queries of `count` tokens, the rows and the joined projection after `where` of the two made them."""
    rows = make_rows(6 * LAYERS, PAGE, case.kv_heads, case.dim, case.dtype, case.kind, torch.Generator().manual_seed(1))
    joined = numbers(19, case.constants.width, dtype=case.dtype)[:count].clone()
    places = torch.randperm(3 * PAGE, generator=torch.Generator().manual_seed(2))[:19]
    # Pages begin at every other row; nothing of the second layer's may get elsewhere.
    slots = (places // PAGE * LAYERS * PAGE + places % PAGE)[:count].to(DEVICE)
    positions = (torch.arange(19, device=DEVICE) * 4 + 1)[:count]
    where.rotate_store(joined, positions, slots, case.rotations, case.constants, rows, 1)
    return joined[:, : case.heads * case.dim].view(count, case.heads, case.dim), rows, joined


@pytest.mark.parametrize("name", CASES)
def test_heads_are_rotated_and_stored(name: str) -> None:
    case = CASES[name]
    (mine, rows, _), (queries, twin, _) = (stored(case, 19, where) for where in (layers, layer_twins))
    torch.testing.assert_close(mine, queries, **CLOSE[case.dtype])
    kept, expected = rows.decoded(), twin.decoded()
    torch.testing.assert_close(kept, expected, **(CLOSE[case.dtype] if case.kind == "plain" else STEP[case.kind]))
    # Hardly any number may be rounded to the next step.
    assert (kept - expected).abs().mean() < 1e-3
    raw = make_rows(6 * LAYERS, PAGE, case.kv_heads, case.dim, case.dtype, case.kind, torch.Generator().manual_seed(1))
    changed = (kept != raw.decoded()).flatten(2).any(dim=-1)
    assert changed.sum() == 19 and not changed[::LAYERS].any()


@pytest.mark.parametrize("name", ["norms over all heads", "int8"])
def test_the_heads_of_a_token_are_its_own(name: str) -> None:
    (some, rows, _), (few, others, _) = (stored(CASES[name], count, layers) for count in (19, 3))
    assert torch.equal(some[:3], few)
    differ = (rows.decoded() != others.decoded()).flatten(2).any(dim=-1)
    assert differ.sum() == 16


def test_queries_to_which_nothing_is_done_keep_their_bits() -> None:
    case = CASES["nothing is done to queries"]
    _, _, joined = stored(case, 19, layers)
    assert torch.equal(joined, numbers(19, case.constants.width, dtype=case.dtype))
