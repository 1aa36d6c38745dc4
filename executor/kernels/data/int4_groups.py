"""Values in four bits: groups of neighbours along a head, each with a scale and a minimum.

A head's vector of one token is a record of bytes: first its D codes, two in a byte, the even ones in the low four bits;
then for each group a float16 scale and a float16 minimum. A number is code · scale + minimum, so codes from 0 to 15
span a group from its least number to its largest. Groups have 32 numbers, and 16 where 32 does not divide D: with the
factors a number takes 5 bits, or 6.

KIVI (Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", ICML 2024) quantizes values like
this, and keys by channel, as some channels of keys are far larger than others: over the tokens of a group, which waits
in floats until it is full. Here a token is stored once and for all when it is computed, so that what a query reads does
not depend on how a prompt was cut; keys beside such values are kept in eight bits (`kv_rows.py`). Turning keys and
queries by a randomized Hadamard matrix before four bits (QuaRot, Ashkboos et al., NeurIPS 2024) was tried in their
place. Over 3,030 places of prose 12.7% of the greedy tokens of SmolLM2-135M changed with it, 13.9% without, and 5.1%
with keys in eight bits; over 1,968 places of the built-in generator 4.6%, 4.8% and 3.6%.
"""

from __future__ import annotations

import torch

# The largest code, and the largest float16.
MOST, LIMIT = 15.0, 65504.0
# Bytes of a group's scale and minimum.
FACTOR_BYTES = 4
_GROUPS = (32, 16)


def suits(dim: int) -> bool:
    """Whether heads `dim` wide divide into groups."""
    return dim % _GROUPS[-1] == 0


def group_of(dim: int) -> int:
    """The numbers of a group of heads `dim` wide. Raises ValueError where there are none."""
    if not suits(dim):
        raise ValueError(f"a head of {dim} numbers does not divide into groups of {_GROUPS[-1]}")
    return next(size for size in _GROUPS if dim % size == 0)


def record_bytes(dim: int) -> int:
    """Bytes of one vector. Raises ValueError as `group_of` does."""
    return dim // 2 + dim // group_of(dim) * FACTOR_BYTES


def pack(values: torch.Tensor) -> torch.Tensor:
    """The records uint8 [..., record_bytes] of `values` [..., D]. What is beyond float16 counts as its limit.

    Codes are for the scale and the minimum as they are stored, rounded half to even.
    """
    dim = values.shape[-1]
    grouped = _split(values.float().clamp(-LIMIT, LIMIT), group_of(dim))
    # Adding zero leaves no zero with a sign.
    low, high = grouped.amin(-1) + 0.0, grouped.amax(-1)
    # Tensors on both sides: with a number torch may multiply by a reciprocal, which rounds twice.
    scale = ((high - low) / torch.full_like(low, MOST)).half()
    minimum = low.half()
    wide, base = scale.float(), minimum.float()
    flat = wide == 0
    inverse = torch.where(flat, torch.zeros_like(wide), torch.ones_like(wide) / wide)
    codes = ((grouped - base[..., None]) * inverse[..., None]).clamp(0, MOST).round()
    pairs = _split(codes.nan_to_num(0).to(torch.uint8).flatten(-2), 2)
    factors = torch.stack((scale, minimum), dim=-1).flatten(-2).contiguous().view(torch.uint8)
    return torch.cat((pairs[..., 0] | pairs[..., 1] << 4, factors), dim=-1)


def unpack(records: torch.Tensor, dim: int) -> torch.Tensor:
    """The values float32 [..., D] of `records` uint8 [..., record_bytes]. Products are exact, sums round once."""
    halves, factors = records[..., : dim // 2], records[..., dim // 2 :]
    codes = torch.stack((halves & 15, halves >> 4), dim=-1).flatten(-2).float()
    scale, minimum = _split(factors.contiguous().view(torch.float16).float(), 2).unbind(-1)
    grouped = _split(codes, group_of(dim))
    return (grouped * scale[..., None] + minimum[..., None]).flatten(-2)


def _split(values: torch.Tensor, size: int) -> torch.Tensor:
    """[..., n · size] as [..., n, size]."""
    return values.reshape(*values.shape[:-1], -1, size)
