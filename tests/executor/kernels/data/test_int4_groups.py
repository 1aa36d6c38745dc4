"""Four-bit records: how far off they are, and what they keep exactly."""

from __future__ import annotations

import pytest
import torch

from qpdsl.executor.kernels.data.int4_groups import LIMIT, group_of, pack, record_bytes, suits, unpack


@pytest.mark.parametrize("dim", [16, 48, 64, 80, 128])
def test_no_number_is_further_off_than_half_a_step_and_the_rounding_of_its_group(dim: int) -> None:
    values = (
        torch.randn(50, 3, dim, generator=torch.Generator().manual_seed(dim)) * torch.logspace(-3, 3, 50)[:, None, None]
    )
    records = pack(values)
    assert records.shape == (50, 3, record_bytes(dim)) and records.dtype == torch.uint8
    grouped = values.unflatten(-1, (-1, group_of(dim)))
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    # A float16 has eleven bits: of the minimum, and of the scale that the largest code multiplies.
    allowed = (high - low) / 30 + (low.abs() + high - low) * 2.0**-11
    assert ((unpack(records, dim).unflatten(-1, (-1, group_of(dim))) - grouped).abs() <= allowed * 1.001).all()


def test_groups_are_their_own() -> None:
    values = torch.randn(64)
    spoiled = values.clone()
    spoiled[40] = 1e4
    assert torch.equal(unpack(pack(values), 64)[:32], unpack(pack(spoiled), 64)[:32])


def test_equal_numbers_zeros_and_numbers_beyond_float16_stay_finite() -> None:
    for number, kept in ((0.0, 0.0), (0.5, 0.5), (1e-12, 0.0), (1e30, LIMIT), (float("-inf"), -LIMIT)):
        assert torch.equal(unpack(pack(torch.full((32,), number)), 32), torch.full((32,), kept))
    spoiled = torch.zeros(64)
    spoiled[3] = float("nan")
    assert unpack(pack(spoiled), 64).isnan().tolist() == [True] * 32 + [False] * 32


def test_widths_that_do_not_divide_are_refused() -> None:
    assert [dim for dim in (8, 12, 16, 24, 40, 80, 128) if suits(dim)] == [16, 80, 128]
    with pytest.raises(ValueError, match="a head of 24 numbers"):
        group_of(24)
