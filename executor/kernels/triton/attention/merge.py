"""Merges the parts of a split context: softmax means, weighted by their log-sum-exps (Flash-Decoding, 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Partials:
    """The results of the parts of a context: means float32 [B, H, slots, D], log-sum-exps float32 [B, H, slots].

    Log-sum-exps are in base 2. Slots: `splits` for each sequence's own tokens, then `shared` for each level of a shared
    prefix. A part without a visible token has −inf, and its mean is not read. With one slot in all there is nothing to
    merge, and both tensors are empty.
    """

    means: torch.Tensor
    totals: torch.Tensor
    splits: int
    shared: int
    slots: int

    @classmethod
    def empty(cls, query: torch.Tensor, splits: int, shared: int = 0, depth: int = 0) -> Partials:
        """Empty tensors for the parts of `query` [B, H, D]."""
        batch, heads, dim = query.shape
        slots = splits + shared * depth
        room = slots if slots > 1 else 0
        means = torch.empty((batch, heads, room, dim), dtype=torch.float32, device=query.device)
        totals = torch.empty((batch, heads, room), dtype=torch.float32, device=query.device)
        return cls(means, totals, splits, shared, slots)


@triton.jit(do_not_specialize=["splits", "shared", "slots"])
def merge_kernel(
    means,
    totals,
    levels,
    out,
    splits,
    shared,
    slots,
    H: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """A program for each query head (axis 0) and sequence (axis 1)."""
    sequence = tl.program_id(1).to(tl.int64)
    line = sequence * H + tl.program_id(0)
    count = splits
    if LEVELS:
        count = splits + shared * tl.load(levels + sequence)
    d = tl.arange(0, D_PAD)
    high = tl.full([1], float("-inf"), tl.float32)
    weight = tl.zeros([1], tl.float32)
    mean = tl.zeros([D_PAD], tl.float32)
    for first in range(0, count, BLOCK):
        slot = first + tl.arange(0, BLOCK)
        total = tl.load(totals + line * slots + slot, mask=slot < count, other=float("-inf"))
        there = total > float("-inf")
        at = (line * slots + slot) * D
        part = tl.load(means + at[:, None] + d[None, :], mask=there[:, None] & (d < D)[None, :], other=0.0)
        peak = tl.maximum(high, tl.max(total, 0))
        base = tl.where(peak == float("-inf"), 0.0, peak)
        fade = tl.exp2(high - base)
        share = tl.exp2(total - base)
        weight = weight * fade + tl.sum(share, 0)
        mean = mean * fade + tl.sum(part * share[:, None], 0)
        high = peak
    mean = mean / tl.where(weight > 0.0, weight, 1.0)
    tl.store(out + line * D + d, mean.to(out.dtype.element_ty), mask=d < D)


def merge(parts: Partials, out: torch.Tensor, levels: torch.Tensor | None = None) -> None:
    """Writes `out` [B, H, D], contiguous. `levels` int32 [B]: how many levels of shared slots were written."""
    batch, heads, dim = out.shape
    merge_kernel[(heads, batch)](
        parts.means,
        parts.totals,
        out if levels is None else levels,
        out,
        parts.splits,
        parts.shared,
        parts.slots,
        H=heads,
        D=dim,
        D_PAD=triton.next_power_of_2(dim),
        BLOCK=_BLOCK,
        LEVELS=levels is not None,
        num_warps=1 if dim <= 64 else 2,
    )
