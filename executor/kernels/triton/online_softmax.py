"""Attention over blocks of keys, as its kernels share it: online softmax, and how parts are joined.

A block of keys is attended as in FlashAttention-2 (Dao, 2023, algorithm 1), with scores in base 2, so that `exp2`
serves. Dot products run in the type `DOT`: the model's type on a device, and float32 under the interpreter, which does
not compute bfloat16 as a device does. Quantized keys and values become float16, which holds each number of eight bits
and takes fewest instructions (`stored_numbers.py`), but for models in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.kv_rows import KVRows, reads_fp8
from qpdsl.executor.kernels.triton.common import (
    DTYPES,
    FP8,
    HARD_FP8,
    INT8,
    INTERPRETED,
    LOG2E,
    PLAIN,
    KernelRows,
    architecture,
)
from qpdsl.executor.kernels.triton.stored_numbers import bytes_of, joined, unjoined, widen

# Scales below this one count as this one; a vector so small adds nothing to a sum.
MIN_SCALE = tl.constexpr(2.0**-60)


def attended(query: torch.Tensor, rows: KVRows) -> KernelRows:
    """The rows for a kernel that multiplies them with queries."""
    made = KernelRows.of(rows)
    dot = tl.float32 if INTERPRETED else DTYPES[query.dtype]
    if rows.kind != "plain" and query.dtype != torch.float32 and not INTERPRETED:
        dot = tl.float16
    kind = HARD_FP8 if rows.kind == "fp8" and reads_fp8(*divmod(architecture(), 10)) else made.KIND
    # No matrix that values become is narrower than tensor cores take.
    wide = max(made.D_PAD.value, 16 if rows.kind == "plain" else 32)
    return made._replace(D_PAD=tl.constexpr(wide), KIND=kind, DOT=tl.constexpr(dot))


@triton.jit
def ready(q, scale, KIND: tl.constexpr, DOT: tl.constexpr):
    """The queries [M, D_PAD] in DOT, and what their products with keys are multiplied by, [M, 1].

    Float16 does not hold every bfloat16 number, so where keys are made float16 each row is first divided by the
    power of two below its largest magnitude.
    """
    factor = tl.full([q.shape[0], 1], 1.0, tl.float32) * scale
    if KIND != PLAIN and tl.float16 == DOT:
        wide = q.to(tl.float32)
        exponent = tl.max(tl.abs(wide), 1).to(tl.int32, bitcast=True) & 0x7F800000
        # 2**-e has the exponent bits 254 − e: no rounding on the way there, nor back.
        wide = wide * (0x7F000000 - exponent).to(tl.float32, bitcast=True)[:, None]
        q = wide
        factor = exponent.to(tl.float32, bitcast=True)[:, None] * scale
    return q.to(DOT), factor


@triton.jit
def log_sum(total, high):
    """Log-sum-exp in base 2 of rows with maxima `high` and sums `total` relative to them; −inf for empty rows."""
    return tl.where(total > 0.0, high + tl.log2(tl.where(total > 0.0, total, 1.0)), float("-inf"))


@triton.jit
def lying(line, token, top, PAGE: tl.constexpr):
    """The place and the page of each token int32 [N] below `top`, from the `line` of the sequence.

    That is its line of the page table, and the position from which on its tokens lie at `places`, the third; None where
    each lies in its place. Kernels load the pages of a block while they attend the
    block before: keys whose addresses are known an iteration ahead can be loaded ahead.
    """
    page_row, branch, places = line
    place = token
    if places is not None:
        moved = (token >= branch) & (token < top)
        place = tl.where(moved, tl.load(places + (token - branch), mask=moved, other=0), token)
    return place, tl.load(page_row + (place.to(tl.uint32) // PAGE).to(tl.int32), mask=token < top, other=0)


@triton.jit
def attend(query, total, high, means, rows, page, layer, head, place, live, seen, scoring):
    """One block of keys: updates the row sums `total`, maxima `high` [M] (base 2) and unscaled `means` (`unjoined`).

    `place` int32 [N]: places in the sequence, of which `live` may be loaded, on the pages `page` int32 [N]; `seen`
    [M, N]: which of them a query sees.

    Where weights may be float16, the power of two in a value's scale is added to the exponent of its weight, and the
    maximum is that of the sums. So weights lie between 0 and 2 whatever the scales are; and nothing but the keys that a
    row sees has a part in its bits.
    """
    ROW: tl.constexpr = rows.ROW
    KV: tl.constexpr = rows.KV
    D: tl.constexpr = rows.D
    KIND: tl.constexpr = rows.KIND
    DOT: tl.constexpr = rows.DOT
    scale = query[1]
    TOKEN: tl.constexpr = 2 * KV * D
    # Three products of shorter numbers want more registers than there are where a head is this wide.
    HOW: tl.constexpr = "ieee" if rows.D_PAD > 128 else "tf32x3"
    SHIFTED: tl.constexpr = KIND > INT8 or (KIND == INT8 and tl.float16 == DOT)
    d = tl.arange(0, rows.D_PAD)
    row = (page + layer).to(tl.int64)
    # Places are not negative, and dividing such takes fewer instructions.
    spot = (place.to(tl.uint32) % rows.PAGE).to(tl.int32)
    token = row * ROW + spot * TOKEN
    k_mask = live[None, :] if D == rows.D_PAD else live[None, :] & (d < D)[:, None]
    k_at = token + head * D
    stored = tl.load(rows.data + k_at[None, :] + d[:, None], mask=k_mask, other=0)
    k = widen(stored, KIND, DOT)
    scores = tl.dot(query[0], k, input_precision=HOW)
    if KIND != PLAIN:
        scale_at = row * (ROW // 4) + rows.PAGE * TOKEN // 4 + spot * (2 * KV) + head
        k_scale = tl.load(rows.scales + scale_at, mask=live, other=0.0)
        if KIND == FP8:
            k_scale *= 256.0
        scores *= k_scale[None, :]
    if scoring.softcap is not None:
        # tanh x = 1 − 2 / (e^2x + 1); the exponential may overflow to infinity, which gives 1.
        power = tl.exp2(scores * (2.0 * LOG2E * scale / scoring.softcap))
        scores = scoring.softcap * LOG2E * (1.0 - 2.0 / (power + 1.0))
    else:
        scores *= scale * LOG2E
    if KIND != PLAIN:
        v_scale = tl.load(rows.scales + scale_at + KV, mask=live, other=0.0)
        if KIND == FP8:
            v_scale *= 256.0
    if SHIFTED:
        # A vector of zeros has the scale 0. The scale is 2**e · m with 1 ≤ m < 2; 2**−e has the exponent bits 254 − e,
        # and e itself comes from bits that count in whole numbers.
        bits = tl.maximum(v_scale, MIN_SCALE).to(tl.int32, bitcast=True)
        shift = ((bits >> 23) | 0x4B000000).to(tl.float32, bitcast=True) - 8388735.0
        unshifted = (0x7F000000 - (bits & 0x7F800000)).to(tl.float32, bitcast=True)
        v_scale = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
        scores += shift[None, :]
    scores = tl.where(seen, scores, float("-inf"))
    peak = tl.maximum(high, tl.max(scores, 1))
    # A row that has seen nothing yet has the maximum −inf, and −inf − (−inf) is not a number.
    base = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(high - base)
    shares = weights * unshifted[None, :] if SHIFTED else weights
    total = total * fade + tl.sum(shares, 1)
    if KIND != PLAIN:
        weights *= v_scale[None, :]
    share, fade = weights.to(DOT), fade[:, None]
    if KIND == PLAIN:
        v_mask = live[:, None] if D == rows.D_PAD else live[:, None] & (d < D)[None, :]
        v = tl.load(rows.data + (token + KV * D + head * D)[:, None] + d[None, :], mask=v_mask, other=0)
        means = (means[0] * fade + tl.dot(share, v.to(DOT), input_precision=HOW),)
    else:
        WORDS: tl.constexpr = means[0].shape[1]
        w = tl.arange(0, WORDS)
        # What divides each term tells the compiler how many bytes it may load at once.
        at = row * (ROW // 2) + spot * (TOKEN // 2) + KV * D // 2 + head * (D // 2)
        v_mask = live[:, None] if D == 2 * WORDS else live[:, None] & (w < D // 2)[None, :]
        words = tl.load(rows.data.to(tl.pointer_type(tl.uint16)) + at[:, None] + w[None, :], mask=v_mask, other=0)
        means = (
            means[0] * fade + tl.dot(share, bytes_of(words, False, KIND, DOT), input_precision=HOW),
            means[1] * fade + tl.dot(share, bytes_of(words, True, KIND, DOT), input_precision=HOW),
        )
    return total, peak, means


@triton.jit
def nothing(sinks, heads, real, here, M: tl.constexpr, D_PAD: tl.constexpr):
    """The state of `fold` before any key: maxima and sums [M], means [M, D_PAD]. Where there are `sinks`, and `here`, a
    head's sink has been added, a score without a value."""
    high = tl.full([M], float("-inf"), tl.float32)
    weight = tl.zeros([M], tl.float32)
    if sinks is not None:
        score = tl.load(sinks + heads, mask=real, other=float("-inf")).to(tl.float32)
        high = tl.where(here, score * LOG2E, float("-inf"))
        weight += tl.where(high > float("-inf"), 1.0, 0.0)
    return high, weight, tl.zeros([M, D_PAD], tl.float32)


@triton.jit
def fold(high, weight, mean, part, total):
    """Adds parts of contexts, softmax means `part` [M, D] and log-sum-exps `total` [M] (base 2), to a state.

    Every kernel joins parts by this code and from the first to the last: so it is the same whether one program attends
    to all parts, or each to one of them. The fused products say how it rounds. Into an empty state a part goes as it
    is, and an empty part changes nothing.
    """
    peak = tl.maximum(high, total)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    fade = tl.exp2(high - base)
    share = tl.exp2(total - base)
    weight = tl.fma(weight, fade, share)
    mean = tl.fma(part, tl.broadcast_to(share[:, None], part.shape), mean * fade[:, None])
    return peak, weight, mean


@triton.jit
def folded(weight, mean):
    """The softmax means [M, D] of a state of `fold`; 0 for rows that saw nothing."""
    return mean * (1.0 / tl.where(weight > 0.0, weight, 1.0))[:, None]


@triton.jit
def attend_range(
    query, rows, scoring, tile, line, layer, head, low, top, begin, position, CAUSAL: tl.constexpr, WITHIN: tl.constexpr
):
    """Attention of queries [M, D_PAD] over the keys from block border `low` to `top`.

    CAUSAL: a query sees the keys up to its own `position` [M], within the window if there is one; else it sees all.
    WITHIN: only keys from `begin` on are visible, and `top` may be below a position; else only positions bound the
    keys. `query`: see `ready`; `line`: see `lying`. Returns the softmax means [M, D_PAD] and the log-sum-exps [M], in
    base 2.
    """
    M: tl.constexpr = query[0].shape[0]
    N: tl.constexpr = tile.N
    high = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    means = unjoined(M, rows.D_PAD, rows.KIND)
    next_place, next_page = lying(line, low + tl.arange(0, N), top, rows.PAGE)
    for block in range(low, top, N):
        token = block + tl.arange(0, N)
        place, page = next_place, next_page
        next_place, next_page = lying(line, token + N, top, rows.PAGE)
        live = token < top
        if WITHIN:
            live = live & (token >= begin)
        seen = live[None, :]
        if CAUSAL:
            past = token[None, :] <= position[:, None]
            seen = seen & past if WITHIN else past
            if tile.WINDOW > 0:
                seen = seen & (token[None, :] > position[:, None] - tile.WINDOW)
        total, high, means = attend(query, total, high, means, rows, page, layer, head, place, live, seen, scoring)
    return folded(total, joined(means, M, rows.D_PAD, rows.KIND)), log_sum(total, high)
