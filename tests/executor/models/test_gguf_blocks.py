"""Blocks of GGUF files give the numbers of ggml's reference code, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qpdsl.executor.checkpoint import gguf_families
from qpdsl.executor.kernels.data.weights import GroupedWeight
from qpdsl.executor.models import gguf_blocks

gguf = pytest.importorskip("gguf", reason="the reference code is in the package gguf")
BLOCKS = sorted(gguf_blocks.TYPES - {"F32", "F16", "BF16"})
# Where a block has float16 numbers.
HALVES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    # All bytes are numbers: its scale has an exponent alone, and that of IQ1_M is spread.
    "MXFP4": (),
    "IQ1_M": (),
}


def random_blocks(kind: str, rows: int, columns: int) -> tuple[np.ndarray, int]:
    """Random bytes of which the float16 numbers are finite, and the inputs that a row of them has."""
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    data = np.random.default_rng(0).integers(0, 256, (rows, columns, size), dtype=np.uint8)
    for place in HALVES.get(kind, (0,)):
        data[..., place + 1] &= 0xBF
    if kind == "MXFP4":
        # Above this, products leave float32.
        data[..., 0] %= 240
    if kind == "IQ1_M":
        data[..., 55] &= 0xBF
    return data.reshape(rows, -1), columns * weights


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_blocks_are_those_of_the_reference(kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_blocks, "_AT_ONCE", at_once)
    data, inputs = random_blocks(kind, 5, 3)
    weight = gguf_blocks.weight(kind, torch.from_numpy(data.copy()).flatten(), 5, inputs)
    assert isinstance(weight, GroupedWeight)
    expected = torch.from_numpy(gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]))
    assert torch.equal(weight.dequantized(), expected)
    # What is called four bits fits in them.
    low, high = int(weight.codes.min()), int(weight.codes.max())
    assert weight.bits == 8 or (low >= 0 and high < 16)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_floats_stay_as_they_are(kind: str) -> None:
    values = torch.randn(3, 8).to({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind])
    weight = gguf_blocks.weight(kind, values.view(torch.uint8).flatten(), 3, 8)
    assert torch.equal(weight.dequantized(), values.float()) and weight.kind == str(values.dtype)[6:]


def test_what_is_read_is_what_a_file_may_hold() -> None:
    assert gguf_families.READ == gguf_blocks.TYPES
