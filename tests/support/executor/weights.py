"""Weights of linear layers made by hand, in every form that checkpoints hold them in."""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.data.weights import FloatWeight, GroupedWeight, Weight

FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Bits, inputs of a group (0 for all of a row), and of a block. Those with a letter and a number are GGUF's.
_GROUPS = {
    "Q8_0": (8, 32, 32),
    "Q4_0": (4, 32, 32),
    "Q4_1": (4, 32, 32),
    "Q4_K": (4, 32, 256),
    "Q6_K": (8, 16, 256),
    "int4 by 8": (4, 8, 8),
    "int8 by row": (8, 0, 0),
}
FORMS = (*FLOATS, *_GROUPS)


def is_four_bits(form: str) -> bool:
    return form in _GROUPS and _GROUPS[form][0] == 4


def step(form: str) -> int:
    """What the number of inputs must be a multiple of."""
    return max(8, _GROUPS[form][2]) if form in _GROUPS else 8


def made(form: str, outputs: int, inputs: int, seed: int = 0) -> Weight:
    """Random weights [outputs, inputs] of about the size of 1."""
    generator = torch.Generator().manual_seed(seed)
    if form in FLOATS:
        return FloatWeight(torch.randn(outputs, inputs, generator=generator).to(FLOATS[form]))
    bits, group, block = _GROUPS[form]
    group, block = group or inputs, block or inputs
    highest = 15 if bits == 4 else 127
    coded = block > group

    def whole(least: int, most: int, columns: int) -> torch.Tensor:
        return torch.randint(least, most + 1, (outputs, columns), generator=generator).to(torch.int8)

    def factors(size: float) -> torch.Tensor:
        """Both signs; what GGUF stores in 16 bits has no more of them."""
        values = torch.randn(outputs, inputs // block, generator=generator) * size
        return values.half().float() if form in _GROUPS and form.startswith("Q") else values

    codes = whole(0, 15, inputs) if bits == 4 else whole(-128, 127, inputs)
    scales = factors(1 / (highest * (30 if coded else 1)))
    offsets = None
    if form == "Q4_0":
        offsets = -8 * scales
    elif bits == 4:
        offsets = factors(1 / 30 if coded else 1)
    scale_codes = offset_codes = None
    if coded:
        scale_codes = whole(0, 63, inputs // group) if bits == 4 else whole(-128, 127, inputs // group)
        offset_codes = None if offsets is None else whole(0, 63, inputs // group)
    return GroupedWeight(codes, bits, scales, offsets, group, scale_codes, offset_codes)
