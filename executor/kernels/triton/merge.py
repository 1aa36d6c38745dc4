"""Merges the parts of a split context: softmax means, weighted by their log-sum-exps (Flash-Decoding, 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.triton.common import LAUNCH
from qpdsl.executor.kernels.triton.online_softmax import fold, folded, nothing
from qpdsl.executor.kernels.triton.tuning import parts_of

# Parts whose loads are under way at a time.
_AHEAD = tl.constexpr(8)


@dataclass(frozen=True, slots=True)
class Partials:
    """The results of the parts of contexts: means float32 [B, H, slots, D], log-sum-exps float32 [B, H, slots].

    A part has `size` tokens, from multiples of `size` on, and the first one that a sequence sees has its slot 0.
    Log-sum-exps are in base 2; a part without a visible token has −inf. Slots: `splits` for each sequence's own tokens,
    then `shared` for each level of a shared prefix. With one slot in all there is nothing to merge, and both tensors
    are empty.
    """

    means: torch.Tensor
    totals: torch.Tensor
    size: int
    splits: int
    shared: int
    slots: int

    @classmethod
    def empty(cls, query: torch.Tensor, size: int, splits: int, shared: int = 0, depth: int = 0) -> Partials:
        """Empty tensors for the parts of `query` [B, H, D]."""
        batch, heads, dim = query.shape
        slots = splits + shared * depth
        room = slots if slots > 1 else 0
        means = torch.empty((batch, heads, room, dim), dtype=torch.float32, device=query.device)
        totals = torch.empty((batch, heads, room), dtype=torch.float32, device=query.device)
        return cls(means, totals, size, splits, shared, slots)


@triton.jit
def fold_slots(high, weight, mean, means, totals, line, low, top, D: tl.constexpr, D_PAD: tl.constexpr):
    """Folds the slots from `low` to `top` of a line of results, one after the other."""
    d = tl.arange(0, D_PAD)[None, :]
    for first in range(low, top, _AHEAD):
        for ahead in tl.static_range(_AHEAD):
            slot = first + ahead + tl.zeros([1], tl.int32)
            there = slot < top
            total = tl.load(totals + line + slot, mask=there, other=float("-inf"))
            part = tl.load(means + (line + slot)[:, None] * D + d, mask=there[:, None] & (d < D), other=0.0)
            high, weight, mean = fold(high, weight, mean, part, total)
    return high, weight, mean


@triton.jit(do_not_specialize=["size", "splits", "shared", "slots"])
def merge_kernel(
    means,
    totals,
    context,
    cascade,
    sinks,
    out,
    size,
    splits,
    shared,
    slots,
    H: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """A program for each query head (axis 0) and sequence (axis 1). `cascade`: `start` and `levels`, or two None."""
    sequence = tl.program_id(1).to(tl.int64)
    start, levels = cascade
    _, _, parts = parts_of(tl.load(context + sequence), start, sequence, size, WINDOW)
    # Without a cascade the program that attended to all of a context has written the result.
    if start is None and parts == 1:
        return
    one = tl.zeros([1], tl.int32)
    high, weight, mean = nothing(sinks, tl.program_id(0) + one, one == 0, True, 1, D_PAD)
    line = (sequence * H + tl.program_id(0)) * slots
    high, weight, mean = fold_slots(high, weight, mean, means, totals, line, 0, parts, D, D_PAD)
    if start is not None:
        top = splits + shared * tl.load(levels + sequence)
        high, weight, mean = fold_slots(high, weight, mean, means, totals, line, splits, top, D, D_PAD)
    d = tl.arange(0, D_PAD)[None, :]
    at = out + (sequence * H + tl.program_id(0)) * D + d
    tl.store(at, folded(weight, mean).to(out.dtype.element_ty), mask=d < D)


def merge(parts: Partials, batch: PagedBatch, scoring: Scoring, out: torch.Tensor, cascade: bool = False) -> None:
    """Writes `out` [B, H, D], contiguous, for the first B sequences. `cascade`: there are slots of shared prefixes."""
    sequences, heads, dim = out.shape
    shared = batch.cascade if cascade else None
    merge_kernel[(heads, sequences)](
        parts.means,
        parts.totals,
        batch.context,
        (None, None) if shared is None else (shared.start, shared.levels),
        scoring.sinks,
        out,
        parts.size,
        parts.splits,
        parts.shared,
        parts.slots,
        H=heads,
        D=dim,
        D_PAD=triton.next_power_of_2(dim),
        WINDOW=scoring.window or 0,
        num_warps=1 if dim <= 64 else 2,
        **LAUNCH,
    )
