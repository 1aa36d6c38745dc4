"""What a layer computes between its products, compiled, against torch and the twin of the cache."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import gelu, silu

from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind
from qpdsl.executor.kernels.data.layer_constants import Activation
from qpdsl.executor.kernels.llvm.cache import HeadShape
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.kernels.llvm.forward import HeadNorm, Widths
from qpdsl.executor.kernels.plain import reference
from tests.support.executor.compiled import LayerKernels, case, copied, gate, norm, split

pytestmark = pytest.mark.skipif(torch.cuda.is_available() or not vector_width(), reason="no case for a CPU's vectors")


def stored(rows: KVRows) -> torch.Tensor:
    """The numbers in the rows, in float32."""
    return rows.decoded()


@pytest.mark.parametrize("dim", [64, 48])
@pytest.mark.parametrize("kind", ["int8", "fp8", "int4"])
def test_fewer_bits_are_those_of_the_twin(kind: RowKind, dim: int) -> None:
    heads = HeadShape(1, 2, dim, 16, kind)
    rows, batch, joined = case(heads)
    expected = copied(rows)
    # These rotations do nothing, so the stored bits are those of the twin.
    identity = torch.tensor([1.0, 0.0]).repeat(50, dim // 2, 1)
    joined *= torch.logspace(3, -33, len(joined))[:, None]
    joined[0, ::3], joined[1] = 0, 0
    _, keys, values = split(joined, heads)
    reference.store(expected, keys, values, batch.slots, 1)
    positions, kernels = torch.zeros(len(joined), dtype=torch.int64), LayerKernels(heads)
    kernels.store(joined, identity, positions, batch, rows, 1)
    assert torch.equal(rows.data, expected.data)
    joined[2, heads.queries + 7] = float("nan")
    kernels.store(joined, identity, positions, batch, rows, 1)
    place, page = int(batch.slots[2]) % heads.page_size, int(batch.slots[2]) // heads.page_size + 1
    assert rows.decoded()[page, place, 0].isnan().any(-1).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_floats_of_16_bits_are_those_of_the_twin(dtype: torch.dtype) -> None:
    heads = HeadShape(1, 2, 64, 16, dtype=dtype)
    rows, batch, joined = case(heads)
    expected = copied(rows)
    identity = torch.tensor([1.0, 0.0]).repeat(50, 32, 1)
    joined *= torch.logspace(3, -33, len(joined))[:, None]
    joined[0, ::3], joined[1, ::5], joined[2, -7] = 0, float("inf"), float("nan")
    # Half way between two numbers of bfloat16, and of float16.
    joined[3, ::2], joined[3, 1::2] = 1.00390625, 1.00048828125
    _, keys, values = split(joined, heads)
    reference.store(expected, keys, values, batch.slots, 1)
    # The other numbers of a pair with an infinity are no numbers once they are rotated.
    kept = torch.ones(len(joined), dtype=torch.bool)
    kept[1] = False
    LayerKernels(heads).store(joined, identity, torch.zeros(len(joined), dtype=torch.int64), batch, rows, 1)
    pages, places = batch.slots[kept] // heads.page_size + 1, batch.slots[kept] % heads.page_size
    torch.testing.assert_close(rows.data[pages, places], expected.data[pages, places], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("head_norm", [None, HeadNorm(1e-6), HeadNorm(1e-6, whole=True)])
@pytest.mark.parametrize("kind", ["plain", "int8", "fp8"])
def test_queries_and_keys_are_rotated_and_stored_in_their_slots(kind: RowKind, head_norm: HeadNorm | None) -> None:
    heads = HeadShape(3, 2, 32, 16, kind)
    rows, batch, joined = case(heads)
    expected_rows = copied(rows)
    # Magnitudes from 1 down to where eight bits round to zero, and a row of zeros.
    joined *= torch.logspace(0, -6, len(joined))[:, None]
    joined[5] = 0
    generator = torch.Generator().manual_seed(1)
    positions = torch.randint(0, 50, (len(joined),), generator=generator)
    angles = torch.rand(50, heads.dim // 2, generator=generator)
    rotations = torch.stack((angles.cos(), angles.sin()), dim=-1)
    weights = torch.rand(heads.fold + 1, heads.kv_heads, heads.dim, generator=generator)
    queries = heads.queries
    turned = joined.clone()[:, : queries + heads.kv_heads * heads.dim].view(len(joined), -1, heads.kv_heads, heads.dim)
    if head_norm is not None:
        over = [heads.kv_heads, heads.dim] if head_norm.whole else [heads.dim]
        if head_norm.whole:
            parts = [torch.rms_norm(turned[:, :-1], [heads.fold, *over], None, 1e-6)]
            turned = torch.cat((*parts, torch.rms_norm(turned[:, -1:], [1, *over], None, 1e-6)), dim=1)
        else:
            turned = torch.rms_norm(turned, over, None, 1e-6)
        turned = turned * weights
    pairs = torch.view_as_complex(turned.unflatten(-1, (-1, 2)))
    pairs = pairs * torch.view_as_complex(rotations)[positions][:, None, None]
    turned = torch.view_as_real(pairs).flatten(1)
    expected = torch.cat((turned, joined[:, turned.shape[1] :]), dim=1)
    _, keys, values = split(expected, heads)
    reference.store(expected_rows, keys, values, batch.slots, 1)
    LayerKernels(heads).store(joined, rotations, positions, batch, rows, 1, head_norm, weights)
    torch.testing.assert_close(joined[:, :queries], expected[:, :queries], rtol=1e-5, atol=1e-6)
    values_stored, wanted = stored(rows), stored(expected_rows)
    if kind == "plain":
        torch.testing.assert_close(values_stored, wanted, rtol=1e-5, atol=1e-6)
    else:
        # The last bit of a rotation may seldom change what a number is rounded to.
        assert (~torch.isclose(values_stored, wanted, rtol=1e-5, atol=1e-30)).float().mean() < 1e-3
        torch.testing.assert_close(values_stored, wanted, rtol=0.13, atol=1e-6 if kind == "fp8" else 0.03)


@pytest.mark.parametrize("size", [32, 96, 20])
def test_norm_agrees_with_torch(size: int) -> None:
    hidden, weight, onto = torch.randn(9, size), torch.randn(size), torch.randn(9, size)
    expected = torch.rms_norm(hidden, [size], weight, 1e-5)
    torch.testing.assert_close(norm(hidden, weight, 1e-5), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(norm(hidden, weight, 1e-5, onto, 0.3), onto + 0.3 * expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_gate_agrees_with_torch_over_the_whole_range_of_float32(activation: Activation) -> None:
    gates = torch.cat((torch.linspace(-120, 120, 80), torch.tensor([0.0, 1e30, -1e30, 3e-39]))).repeat(8)[: 7 * 96]
    gates = gates.view(7, 96)
    ups = torch.randn(7, 96)
    act = silu(gates) if activation == "silu" else gelu(gates, approximate="tanh")
    torch.testing.assert_close(gate(gates, ups, activation), act * ups, rtol=1e-5, atol=1e-6)


def test_nan_stays_nan() -> None:
    assert gate(torch.full((1, 96), float("nan")), torch.ones(1, 96), "silu").isnan().all()


@pytest.mark.parametrize(("hidden", "dim", "page_size"), [(30, 32, 16), (32, 30, 16), (32, 32, 2)])
def test_shapes_without_vectors_are_refused(hidden: int, dim: int, page_size: int) -> None:
    with pytest.raises(LookupError):
        Widths.of(hidden, HeadShape(1, 1, dim, page_size))
