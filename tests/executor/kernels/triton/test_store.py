"""The store kernel against its torch twin: the same bytes."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind
from qpdsl.executor.kernels.plain import reference
from qpdsl.executor.kernels.triton.stored_numbers import store
from tests.support.executor.paged_case import DEVICE, LAYERS, make_rows

CASES = [
    ("plain", torch.float32, 16, 2, 64),
    ("plain", torch.bfloat16, 16, 3, 80),
    ("plain", torch.float16, 32, 1, 128),
    ("int8", torch.float32, 16, 2, 32),
    ("int8", torch.bfloat16, 32, 3, 96),
    ("fp8", torch.float32, 16, 1, 128),
    ("fp8", torch.bfloat16, 16, 2, 80),
    ("fp8", torch.float16, 32, 2, 64),
]


def copy(rows: KVRows) -> KVRows:
    data = rows.data.clone()
    return KVRows.plain(data) if rows.kind == "plain" else KVRows.quantized(data, rows.kind, *shape(rows))


def shape(rows: KVRows) -> tuple[int, int, int]:
    return rows.page_size, rows.kv_heads, rows.dim


@pytest.mark.parametrize(("kind", "dtype", "page_size", "kv_heads", "dim"), CASES)
def test_bytes_are_the_twins(kind: RowKind, dtype: torch.dtype, page_size: int, kv_heads: int, dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    rows = make_rows(4 * LAYERS, page_size, kv_heads, dim, dtype, kind, generator)
    twin = copy(rows)
    slots = torch.cat([page + torch.randperm(page_size, generator=generator)[:5] for page in (0, 4 * page_size)])
    # Heads before tokens, as transformers lays keys out, and an order that no model has.
    key = torch.randn(kv_heads, 10, dim, generator=generator).transpose(0, 1).to(dtype).to(DEVICE)
    value = (torch.randn(dim, 10, kv_heads, generator=generator) * 30).permute(1, 2, 0).to(dtype).to(DEVICE)
    # A vector of zeros has no scale, one of tiny numbers a tiny one, and the largest magnitude may be negative.
    key[0] = 0
    value[1] *= 1e-6
    value[2, 0, 3] = -2000.0
    store(rows, key, value, slots.to(DEVICE), 1)
    reference.store(twin, key, value, slots.to(DEVICE), 1)
    assert torch.equal(rows.data.view(torch.uint8), twin.data.view(torch.uint8))


def test_every_e4m3_number_and_every_midpoint_is_rounded_as_torch_rounds_it() -> None:
    numbers = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (numbers[1:] + numbers[:-1]) / 2
    values = torch.cat((numbers, middles, middles.nextafter(numbers[1:])))
    values = torch.nn.functional.pad(values, (0, -values.numel() % 31)).view(-1, 1, 31)
    # Each vector's largest number is 448, so the scale is 1.
    key = torch.nn.functional.pad(values, (1, 0), value=448.0).to(DEVICE)
    key[::2] *= -1
    rows = make_rows(LAYERS, 16, 1, 32, torch.float32, "fp8", torch.Generator().manual_seed(0))
    store(rows, key, key, torch.arange(len(key), device=DEVICE), 0)
    stored, scales = rows.split()
    assert torch.equal(scales[0, : len(key)], torch.ones_like(scales[0, : len(key)]))
    wanted = key.to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(stored[0, : len(key), 0], wanted)
