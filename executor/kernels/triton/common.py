"""What the Triton kernels share: offsets into paged rows, quantized elements, one block of online softmax.

A block of keys is attended as in FlashAttention-2 (Dao, 2023, algorithm 1), with scores in base 2, so that `exp2`
serves. Dot products run in the type `DOT`: the model's type on a device, and float32 under the interpreter, which does
not compute bfloat16 as a device does. Where a device converts e4m3 itself, it does so to float16, and the dot products
of such keys and values are in float16.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.driver import driver

from qpdsl.executor.kernels.data.kv_rows import KVRows

LOG2E = tl.constexpr(math.log2(math.e))
# From INT8 on the numbers of a head have one scale, which is multiplied in after sums. With INT4 only the values have
# four bits, and the keys are INT8.
# FP8 is taken apart by hand, HARD_FP8 by the device's own conversion.
PLAIN, INT4, INT8, FP8, HARD_FP8 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3), tl.constexpr(4)
KINDS = {"plain": 0, "int4": 1, "int8": 2, "fp8": 3}
DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
INTERPRETED = bool(triton.knobs.runtime.interpret)
# Scales below this one count as this one; a vector so small adds nothing to a sum.
LEAST_SCALE = tl.constexpr(2.0**-60)
# Options of every launch. Products and sums fuse whatever the default of the installed Triton is: the same bits with
# each, and fewer instructions.
LAUNCH = {"enable_fp_fusion": True}


def geometry(rows: KVRows) -> dict[str, int]:
    """The constants of a model's rows, by the names that the kernels have for them."""
    return {
        "ROW": rows.row_elements,
        "PAGE": rows.page_size,
        "KV": rows.kv_heads,
        "D": rows.dim,
        "D_PAD": max(16, triton.next_power_of_2(rows.dim)),
        "KIND": KINDS[rows.kind],
    }


def attended(query: torch.Tensor, rows: KVRows) -> dict[str, Any]:
    """`geometry`, how stored elements become numbers, and the type DOT in which a kernel multiplies them.

    Devices have an instruction from e4m3 to float16 from compute capability 8.9 on.
    """
    numbers: dict[str, Any] = geometry(rows)
    numbers["DOT"] = tl.float32 if INTERPRETED else DTYPES[query.dtype]
    if rows.kind == "fp8" and architecture() >= 89:
        numbers["KIND"] = HARD_FP8.value
        if query.dtype != torch.float32:
            numbers["DOT"] = tl.float16
    return numbers


def architecture() -> int:
    """Ten times the compute capability of the CUDA device that Triton compiles for; 0 under the interpreter."""
    return 0 if INTERPRETED else _architecture(driver.active)


@cache
def _architecture(active: Any) -> int:
    target = active.get_current_target()
    return int(target.arch) if target.backend == "cuda" else 0


@triton.jit
def widen(x, KIND: tl.constexpr, DOT: tl.constexpr):
    """Stored elements as numbers; for FP8 a 256th of each, which is multiplied back with its scale.

    The bits of an e4m3 number, moved into the low exponent bits of a float16, are that number times 2**-8, also where
    it is subnormal. So no device needs a type for it.
    """
    if KIND == HARD_FP8:
        wide = x.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    elif KIND == FP8:
        bits = x.to(tl.uint16)
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        wide = half.to(tl.float16, bitcast=True)
    elif KIND == INT8:
        wide = x.to(tl.int8, bitcast=True).to(tl.float32)
    else:
        wide = x
    return wide.to(DOT)


@triton.jit
def ready(q, scale, KIND: tl.constexpr, DOT: tl.constexpr):
    """The queries [M, D_PAD] in DOT, and what their products with keys are multiplied by, [M, 1].

    Float16 does not hold every bfloat16 number, so where the keys are made float16 each row is first divided by the
    power of two below its largest magnitude.
    """
    factor = tl.full([q.shape[0], 1], 1.0, tl.float32) * scale
    if KIND == HARD_FP8:
        wide = q.to(tl.float32)
        exponent = tl.max(tl.abs(wide), 1).to(tl.int32, bitcast=True) & 0x7F800000
        # 2**-e has the exponent bits 254 − e: no rounding on the way there, nor back.
        wide = wide * (0x7F000000 - exponent).to(tl.float32, bitcast=True)[:, None]
        q = wide
        factor = exponent.to(tl.float32, bitcast=True)[:, None] * scale
    return q.to(DOT), factor


@triton.jit
def four_bits(rows, scales, at, live, N: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, DOT: tl.constexpr):
    """The numbers [N, D_PAD] of the four-bit records at bytes `at` [N], where `live`, else 0 (see `int4_groups.py`).

    A group's factors are loaded once and spread over its numbers: pipelined loads wait in shared memory.
    """
    GROUP: tl.constexpr = 32 if D % 32 == 0 else 16
    GROUPS: tl.constexpr = D_PAD // GROUP
    d, group = tl.arange(0, D_PAD), tl.arange(0, GROUPS)
    pair = tl.load(rows + at[:, None] + d[None, :] // 2, mask=live[:, None] & (d < D)[None, :], other=0).to(tl.int32)
    code = ((pair >> (d[None, :] % 2) * 4) & 15).to(tl.float32)
    # The scale is in the low half, the minimum in the high half.
    words = scales + ((at + D // 2) // 4)[:, None] + group[None, :]
    word = tl.load(words, mask=live[:, None] & (group < D // GROUP)[None, :], other=0.0).to(tl.uint32, bitcast=True)
    scale = (word & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    minimum = (word >> 16).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    grouped = tl.reshape(code, [N, GROUPS, GROUP]) * scale[:, :, None] + minimum[:, :, None]
    return tl.reshape(grouped, [N, D_PAD]).to(DOT)


@triton.jit
def log_sum(total, high):
    """Log-sum-exp in base 2 of rows with maxima `high` and sums `total` relative to them; −inf for empty rows."""
    return tl.where(total > 0.0, high + tl.log2(tl.where(total > 0.0, total, 1.0)), float("-inf"))


@triton.jit
def lying(page_row, branch, places, token, top, PAGE: tl.constexpr, TREES: tl.constexpr):
    """The place and the page of each token int32 [N] below `top`, from the sequence's line of the page table.

    With TREES, those from position `branch` on lie at `places`. Kernels load the pages of a block while they attend the
    block before: keys whose addresses are known an iteration ahead can be loaded ahead.
    """
    place = token
    if TREES:
        moved = (token >= branch) & (token < top)
        place = tl.where(moved, tl.load(places + (token - branch), mask=moved, other=0), token)
    return place, tl.load(page_row + place // PAGE, mask=token < top, other=0)


@triton.jit
def attend(
    queries,
    total,
    high,
    mean,
    rows,
    scales,
    page,
    layer,
    head,
    place,
    live,
    seen,
    scale,
    softcap,
    ROW: tl.constexpr,
    PAGE: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    KIND: tl.constexpr,
    DOT: tl.constexpr,
    CAPPED: tl.constexpr,
):
    """One block of keys: updates the row sums `total`, maxima `high` [M] (base 2) and unscaled means `mean` [M, D_PAD].

    `queries` [M, D_PAD] in DOT, whose products are multiplied by `scale` [M, 1]; `place` int32 [N]: places in the
    sequence, of which `live` may be loaded, on the pages `page` int32 [N]; `seen` [M, N]: which of them a query sees.

    Where weights may be float16, the power of two in a value's scale is added to the exponent of its weight, and the
    maximum is that of the sums. So weights lie between 0 and 2 whatever the scales are; and nothing but the keys that a
    row sees has a part in its bits.
    """
    SHIFTED: tl.constexpr = KIND > INT8 or (KIND == INT8 and tl.float16 == DOT)
    d = tl.arange(0, D_PAD)
    row = (page + layer).to(tl.int64)
    # The elements of a value: numbers, or bytes of a four-bit record. How many scales a token has for each head.
    WIDE: tl.constexpr = D // 2 + D // (32 if D % 32 == 0 else 16) * 4 if KIND == INT4 else D
    SCALES: tl.constexpr = 1 if KIND == INT4 else 2
    token = row * ROW + (place % PAGE) * (KV * (D + WIDE))
    k_mask = live[None, :] if D == D_PAD else live[None, :] & (d < D)[:, None]
    k_at = token + head * D
    k = widen(tl.load(rows + k_at[None, :] + d[:, None], mask=k_mask, other=0), INT8 if KIND == INT4 else KIND, DOT)
    scores = tl.dot(queries, k, input_precision="tf32x3")
    if KIND != PLAIN:
        scale_at = row * (ROW // 4) + PAGE * KV * (D + WIDE) // 4 + (place % PAGE) * (SCALES * KV) + head
        k_scale = tl.load(scales + scale_at, mask=live, other=0.0)
        if KIND == FP8:
            k_scale *= 256.0
        scores *= k_scale[None, :]
    if CAPPED:
        # tanh x = 1 − 2 / (e^2x + 1); the exponential may overflow to infinity, which gives 1.
        scores = softcap * LOG2E * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * LOG2E * scale / softcap)) + 1.0))
    else:
        scores *= scale * LOG2E
    if KIND >= INT8:
        v_scale = tl.load(scales + scale_at + KV, mask=live, other=0.0)
        if KIND == FP8:
            v_scale *= 256.0
    if SHIFTED:
        # A vector of zeros has the scale 0. The scale is 2**e · m with 1 ≤ m < 2; 2**−e has the exponent bits 254 − e,
        # and e itself comes from bits that count in whole numbers.
        bits = tl.maximum(v_scale, LEAST_SCALE).to(tl.int32, bitcast=True)
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
    if KIND >= INT8:
        weights *= v_scale[None, :]
    at = token + KV * D + head * WIDE
    v_mask = live[:, None] if D == D_PAD else live[:, None] & (d < D)[None, :]
    if KIND == INT4:
        v = four_bits(rows, scales, at, live, place.shape[0], D, D_PAD, DOT)
    else:
        v = widen(tl.load(rows + at[:, None] + d[None, :], mask=v_mask, other=0), KIND, DOT)
    mean = mean * fade[:, None] + tl.dot(weights.to(DOT), v, input_precision="tf32x3")
    return total, peak, mean


@triton.jit
def nothing(sinks, heads, real, here, M: tl.constexpr, D_PAD: tl.constexpr, SINKS: tl.constexpr):
    """The state of `fold` before any key: maxima and sums [M], means [M, D_PAD]. With SINKS and `here`, a head's sink
    has been added, a score without a value."""
    high = tl.full([M], float("-inf"), tl.float32)
    weight = tl.zeros([M], tl.float32)
    if SINKS:
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
    q,
    rows,
    scales,
    page_row,
    branch,
    places,
    layer,
    head,
    low,
    top,
    begin,
    position,
    scale,
    softcap,
    ROW: tl.constexpr,
    PAGE: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    KIND: tl.constexpr,
    DOT: tl.constexpr,
    CAPPED: tl.constexpr,
    WINDOW: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    CAUSAL: tl.constexpr,
    WITHIN: tl.constexpr,
    TREES: tl.constexpr,
):
    """Attention of queries [M, D_PAD] over the keys from block border `low` to `top`.

    CAUSAL: a query sees the keys up to its own `position` [M], within WINDOW if that is not 0; else it sees all keys.
    WITHIN: only keys from `begin` on are visible, and `top` may be below a position; else only positions bound the
    keys. `page_row`: the sequence's line of the page table; `branch`, `places`: see `lying`. Returns the softmax means
    [M, D_PAD] and the log-sum-exps [M], in base 2.
    """
    high = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    mean = tl.zeros([M, D_PAD], tl.float32)
    next_place, next_page = lying(page_row, branch, places, low + tl.arange(0, N), top, PAGE, TREES)
    for block in range(low, top, N):
        token = block + tl.arange(0, N)
        place, page = next_place, next_page
        next_place, next_page = lying(page_row, branch, places, token + N, top, PAGE, TREES)
        live = token < top
        if WITHIN:
            live = live & (token >= begin)
        seen = live[None, :]
        if CAUSAL:
            past = token[None, :] <= position[:, None]
            seen = seen & past if WITHIN else past
            if WINDOW > 0:
                seen = seen & (token[None, :] > position[:, None] - WINDOW)
        total, high, mean = attend(
            q, total, high, mean, rows, scales, page, layer, head, place, live, seen, scale, softcap,
            ROW, PAGE, KV, D, D_PAD, KIND, DOT, CAPPED,
        )  # fmt: skip
    return folded(total, mean), log_sum(total, high)
