"""Blocks of GGUF files as whole numbers with scales: nothing is turned into floats, and no value changes.

The layouts are those of ggml (`ggml-common.h`; `ggml-quants.c` has the arithmetic). Types of five and six bits become
eight-bit numbers, and so do those whose numbers are points of a grid (IQ1 to IQ3): transformers has the grids, and is
given the blocks with scales of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from qpdsl.executor.checkpoint.errors import CheckpointError
from qpdsl.executor.kernels.data.weights import FloatWeight, GroupedWeight, Weight, stacked

# So many weights are unpacked at a time, to stay in the caches.
_AT_ONCE = 1 << 20
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Twice what the four bits of MXFP4 stand for.
_FP4 = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=torch.int8)
# What the four bits of IQ4_NL and IQ4_XS stand for.
_LEVELS = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.int8)


def weight(kind: str, data: torch.Tensor, outputs: int, inputs: int) -> Weight:
    """The weights [out, in] of a tensor of the type `kind`, whose bytes are `data` uint8. They share no memory with it.

    Raises KeyError for a type that is not read, CheckpointError where the installed transformers lacks its grid.
    """
    rows = data.view(outputs, -1)
    if kind in _FLOATS:
        return FloatWeight(rows.clone().view(_FLOATS[kind]))
    size, unpack = _BLOCKS[kind]
    count = max(1, _AT_ONCE // inputs)
    starts = range(0, outputs, count)
    shape = (-1, rows.shape[1] // size, size)
    if len(starts) == 1:
        return unpack(rows.view(shape))
    return stacked((unpack(rows[start : start + count].view(shape)) for start in starts), outputs)


# Each takes the bytes of blocks, uint8 [out, blocks, bytes].
def _q4_0(data: torch.Tensor) -> GroupedWeight:
    scales = _half(data, 0)
    return GroupedWeight(_flat(_nibbles(data[..., 2:], 16)), 4, scales, -8 * scales, 32)


def _q4_1(data: torch.Tensor) -> GroupedWeight:
    return GroupedWeight(_flat(_nibbles(data[..., 4:], 16)), 4, _half(data, 0), _half(data, 2), 32)


def _q5_0(data: torch.Tensor) -> GroupedWeight:
    codes = _nibbles(data[..., 6:], 16) | _bits_in_order(data[..., 2:6]) << 4
    return GroupedWeight(_flat(codes) - 16, 8, _half(data, 0), None, 32)


def _q5_1(data: torch.Tensor) -> GroupedWeight:
    codes = _nibbles(data[..., 8:], 16) | _bits_in_order(data[..., 4:8]) << 4
    return GroupedWeight(_flat(codes), 8, _half(data, 0), _half(data, 2), 32)


def _q8_0(data: torch.Tensor) -> GroupedWeight:
    return GroupedWeight(_flat(data[..., 2:]), 8, _half(data, 0), None, 32)


def _q2_k(data: torch.Tensor) -> GroupedWeight:
    coded, codes = data[..., :16], _fields(data[..., 16:80], 32, 2, 4)
    scales, offsets = _half(data, 80), -_half(data, 82)
    return GroupedWeight(_flat(codes), 4, scales, offsets, 16, _flat(coded & 15), _flat(coded >> 4))


def _q3_k(data: torch.Tensor) -> GroupedWeight:
    # The third bit says that 4 is not to be taken off.
    codes = _fields(data[..., 32:96], 32, 2, 4) | _fields(data[..., :32], 32, 1, 8) << 2
    low, high = _nibbles(data[..., 96:104], 8), _fields(data[..., 104:108], 4, 2, 4)
    return GroupedWeight(_flat(codes) - 4, 8, _half(data, 108), None, 16, _flat(low | high << 4) - 32)


def _q4_k(data: torch.Tensor) -> GroupedWeight:
    scale_codes, offset_codes = _six_bits(data[..., 4:16])
    codes = _flat(_nibbles(data[..., 16:], 32))
    return GroupedWeight(codes, 4, _half(data, 0), -_half(data, 2), 32, scale_codes, offset_codes)


def _q5_k(data: torch.Tensor) -> GroupedWeight:
    scale_codes, offset_codes = _six_bits(data[..., 4:16])
    codes = _flat(_nibbles(data[..., 48:], 32) | _fields(data[..., 16:48], 32, 1, 8) << 4)
    return GroupedWeight(codes, 8, _half(data, 0), -_half(data, 2), 32, scale_codes, offset_codes)


def _q6_k(data: torch.Tensor) -> GroupedWeight:
    codes = _nibbles(data[..., :128], 64) | _fields(data[..., 128:192], 32, 2, 4) << 4
    return GroupedWeight(_flat(codes) - 32, 8, _half(data, 208), None, 16, _flat(data[..., 192:208]))


def _iq4_nl(data: torch.Tensor) -> GroupedWeight:
    return GroupedWeight(_levels(_nibbles(data[..., 2:], 16)), 8, _half(data, 0), None, 32)


def _iq4_xs(data: torch.Tensor) -> GroupedWeight:
    low = torch.stack((data[..., 4:8] & 15, data[..., 4:8] >> 4), dim=-1).flatten(-2)
    high = torch.stack([data[..., 2:4] >> 2 * place & 3 for place in range(4)], dim=-1).flatten(-2)
    codes = _levels(_nibbles(data[..., 8:], 16))
    return GroupedWeight(codes, 8, _half(data, 0), None, 32, _flat(low | high << 4) - 32)


def _mxfp4(data: torch.Tensor) -> GroupedWeight:
    # The exponent of a scale, in the place that it has in a float32, less 1, as levels are doubled.
    exponents = data[..., 0].int()
    small = torch.tensor(0x00200000, dtype=torch.int32) << exponents
    scales = torch.where(exponents < 2, small, exponents - 1 << 23).view(torch.float32)
    return GroupedWeight(_FP4[_flat(_nibbles(data[..., 1:], 16)).int()], 8, scales, None, 32)


def _tq1_0(data: torch.Tensor) -> GroupedWeight:
    # Five numbers to the base 3 in a byte, scaled so that the highest digit is the carry of a product with 3.
    parts = [(data[..., :32], 5), (data[..., 32:48], 5), (data[..., 48:52], 4)]
    digits = [(part.int() * 3**place % 256) * 3 >> 8 for part, count in parts for place in range(count)]
    return GroupedWeight(_flat(torch.cat(digits, -1).to(torch.uint8)) - 1, 8, _half(data, 52), None, 256)


def _tq2_0(data: torch.Tensor) -> GroupedWeight:
    return GroupedWeight(_flat(_fields(data[..., :64], 32, 2, 4)) - 1, 8, _half(data, 64), None, 256)


# Of types whose numbers are points of a grid: ggml's number, the unit of their values where all scales are 1, and where
# a block has its scales.
_GRIDS = {
    "IQ2_XXS": (16, 0.125, slice(2, 66)),
    "IQ2_XS": (17, 0.125, slice(66, 74)),
    "IQ3_XXS": (18, 0.25, slice(66, 98)),
    "IQ1_S": (19, 0.125, slice(34, 50)),
    "IQ3_S": (21, 1.0, slice(106, 110)),
    "IQ2_S": (22, 0.125, slice(74, 82)),
    "IQ1_M": (29, 0.125, slice(48, 56)),
}
_ONE = torch.tensor([0x00, 0x3C], dtype=torch.uint8)


def _on_grid(kind: str) -> Callable[[torch.Tensor], GroupedWeight]:
    """A weight is its point times the unit, an odd number 2s + 1 of its group, and the scale of its block."""
    number, unit, place = _GRIDS[kind]

    def unpack(data: torch.Tensor) -> GroupedWeight:
        try:
            from transformers.integrations.gguf.dequant import dequantize
        except ImportError as error:
            raise CheckpointError(f"weights of the type {kind} need a newer transformers") from error
        given, plain = data[..., place], data.clone()
        if kind == "IQ1_M":
            halves = given.contiguous().view(torch.int16).int() & 0xFFFF
            bits = halves >> 12 << torch.tensor([0, 4, 8, 12])
            scales = bits.sum(-1).to(torch.int16).view(torch.float16).float()
            codes = torch.stack([halves >> 3 * group & 7 for group in range(4)], dim=-1).flatten(-2)
            plain[..., place] = torch.tensor([0, 0, 0, 0, 0, 0xC0, 0, 0x30], dtype=torch.uint8)
        else:
            scales = _half(data, 0)
            plain[..., :2] = _ONE
            if kind in ("IQ2_XXS", "IQ3_XXS"):
                # Above the signs of a group.
                first, step = (7, 8) if kind == "IQ2_XXS" else (3, 4)
                codes = given[..., first::step] >> 4
                plain[..., place][..., first::step] &= 15
            elif kind == "IQ1_S":
                codes = given[..., 1::2] >> 4 & 7
                plain[..., place][..., 1::2] &= 0x8F
            else:
                codes = torch.stack((given & 15, given >> 4), dim=-1).flatten(-2)
                plain[..., place] = 0
        points = dequantize(plain.flatten(0, -2), number, torch.float32).view(*data.shape[:-1], 256)
        # A point of IQ1 is moved by an eighth.
        whole = (points / (unit if kind[2] != "1" else 0.125)).round().to(torch.int8)
        odd = _flat((2 * codes + 1).to(torch.uint8))
        return GroupedWeight(whole.flatten(1), 8, scales * unit, None, 256 // codes.shape[-1], odd)

    return unpack


# By type: the bytes of a block, and what unpacks blocks.
_BLOCKS: Mapping[str, tuple[int, Callable[[torch.Tensor], GroupedWeight]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
    "IQ4_NL": (18, _iq4_nl),
    "IQ4_XS": (136, _iq4_xs),
    "MXFP4": (17, _mxfp4),
    "TQ1_0": (54, _tq1_0),
    "TQ2_0": (66, _tq2_0),
    "IQ1_S": (50, _on_grid("IQ1_S")),
    "IQ1_M": (56, _on_grid("IQ1_M")),
    "IQ2_XXS": (66, _on_grid("IQ2_XXS")),
    "IQ2_XS": (74, _on_grid("IQ2_XS")),
    "IQ2_S": (82, _on_grid("IQ2_S")),
    "IQ3_XXS": (98, _on_grid("IQ3_XXS")),
    "IQ3_S": (110, _on_grid("IQ3_S")),
}


TYPES = frozenset({*_FLOATS, *_BLOCKS})


def _half(data: torch.Tensor, place: int) -> torch.Tensor:
    """The float16 at a place of each block, as float32 [out, blocks]."""
    return data[..., place : place + 2].contiguous().view(torch.float16).squeeze(-1).float()


def _fields(data: torch.Tensor, run: int, bits: int, count: int) -> torch.Tensor:
    """Runs of `run` bytes have `count` numbers of `bits` in each byte: all the first ones, then all the second ones…"""
    # Several bytes at a time: what comes down from the next byte is masked.
    word = torch.int64 if run % 8 == 0 else torch.int32
    words = data.clone(memory_format=torch.contiguous_format).view(word).view(-1, run // word.itemsize)
    fields = words.new_empty(len(words), count, words.shape[1])
    for place in range(count):
        torch.bitwise_right_shift(words, bits * place, out=fields[:, place])
    fields &= int.from_bytes(bytes([(1 << bits) - 1] * word.itemsize), "little")
    return fields.view(torch.uint8).view(*data.shape[:-1], -1)


def _nibbles(data: torch.Tensor, run: int) -> torch.Tensor:
    return _fields(data, run, 4, 2)


def _bits_in_order(data: torch.Tensor) -> torch.Tensor:
    """The bits of bytes, the lowest first."""
    return torch.stack([data >> place & 1 for place in range(8)], dim=-1).flatten(-2)


def _six_bits(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight scales and eight offsets of six bits, in twelve bytes: int8 [out, groups] both."""
    scales, offsets, rest = data[..., :4], data[..., 4:8], data[..., 8:]
    last_scales = rest & 15 | scales >> 2 & 48
    last_offsets = rest >> 4 | offsets >> 2 & 48
    return _flat(torch.cat((scales & 63, last_scales), -1)), _flat(torch.cat((offsets & 63, last_offsets), -1))


def _levels(codes: torch.Tensor) -> torch.Tensor:
    return _LEVELS[_flat(codes).int()]


def _flat(codes: torch.Tensor) -> torch.Tensor:
    """int8 [out, numbers] of uint8 [out, blocks, numbers]."""
    return codes.flatten(1).view(torch.int8)
