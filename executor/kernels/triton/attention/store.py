"""Writes new keys and values into their pages, and quantizes them where the rows are quantized."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.int4_groups import LIMIT, MOST
from qpdsl.executor.kernels.data.kv_rows import LARGEST, SMALLEST, KVRows
from qpdsl.executor.kernels.triton.common import FP8, INT4, LAUNCH, PLAIN, geometry


@triton.jit
def to_e4m3(x):
    """The e4m3 bits uint8 of x float32, |x| ≤ 448, rounded half to even."""
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = tl.abs(x)
    # Adding 2**14 rounds to multiples of 2**-9, the step of subnormal e4m3 numbers; the low bits then count them.
    small = (size + 16384.0).to(tl.uint32, bitcast=True) & 0xFF
    plain = size.to(tl.uint32, bitcast=True)
    # 20 of the 23 bits of the mantissa are dropped, and the bias of the exponent goes from 127 to 7.
    normal = ((plain + 0x7FFFF + ((plain >> 20) & 1)) >> 20) - 960
    return (sign | tl.where(size < 0.015625, small, normal)).to(tl.uint8)


@triton.jit
def put_groups(x, rows, scales, at, real, MOST: tl.constexpr, LIMIT: tl.constexpr, D: tl.constexpr):
    """Stores each line of `x` [N, D_PAD], where `real` [N], as a record at byte `at` [N]. Twin: `int4_groups.pack`."""
    N: tl.constexpr = x.shape[0]
    D_PAD: tl.constexpr = x.shape[1]
    GROUP: tl.constexpr = 32 if D % 32 == 0 else 16
    clamped = tl.minimum(tl.maximum(x.to(tl.float32), -LIMIT), LIMIT)
    grouped = tl.reshape(clamped, [N, D_PAD // GROUP, GROUP])
    low = tl.min(grouped, 2) + 0.0
    scale = tl.div_rn(tl.max(grouped, 2) - low, tl.full([N, D_PAD // GROUP], MOST, tl.float32)).to(tl.float16)
    minimum = low.to(tl.float16)
    wide = scale.to(tl.float32)
    flat = wide == 0.0
    one = tl.full([N, D_PAD // GROUP], 1.0, tl.float32)
    inverse = tl.where(flat, 0.0, tl.div_rn(one, tl.where(flat, 1.0, wide)))
    scaled = (grouped - minimum.to(tl.float32)[:, :, None]) * inverse[:, :, None]
    # Adding 1.5 · 2**23 rounds to whole numbers, half to even.
    whole = (tl.minimum(tl.maximum(scaled, 0.0), MOST) + 12582912.0) - 12582912.0
    even, odd = tl.split(tl.reshape(whole.to(tl.int32), [N, D_PAD // 2, 2]))
    byte = tl.arange(0, D_PAD // 2)
    to = rows + at[:, None] + byte[None, :]
    tl.store(to, (even | (odd << 4)).to(tl.uint8), mask=real[:, None] & (byte < D // 2)[None, :])
    bits = minimum.to(tl.uint16, bitcast=True).to(tl.uint32) << 16 | scale.to(tl.uint16, bitcast=True).to(tl.uint32)
    group = tl.arange(0, D_PAD // GROUP)
    words = scales + ((at + D // 2) // 4)[:, None] + group[None, :]
    tl.store(words, bits.to(tl.float32, bitcast=True), mask=real[:, None] & (group < D // GROUP)[None, :])


@triton.jit
def put(
    new,
    rows,
    scales,
    token,
    row,
    place,
    stride_token,
    stride_head,
    stride_dim,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    MOST: tl.constexpr,
    LIMIT: tl.constexpr,
    ROW: tl.constexpr,
    PAGE: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    KIND: tl.constexpr,
    KV_PAD: tl.constexpr,
    WHICH: tl.constexpr,
):
    """Stores the key (WHICH 0) or the value (1) [KV, D] of one token."""
    head = tl.arange(0, KV_PAD)
    d = tl.arange(0, D_PAD)
    mask = (head < KV)[:, None] & (d < D)[None, :]
    x = tl.load(
        new + token * stride_token + head[:, None] * stride_head + d[None, :] * stride_dim, mask=mask, other=0.0
    )
    put_numbers(
        x, rows, scales, row, place, head, head < KV,
        LARGEST, SMALLEST, MOST, LIMIT, ROW, PAGE, KV, D, KIND, WHICH,
    )  # fmt: skip


@triton.jit
def put_numbers(
    x,
    rows,
    scales,
    row,
    place,
    head,
    real,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    MOST: tl.constexpr,
    LIMIT: tl.constexpr,
    ROW: tl.constexpr,
    PAGE: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    KIND: tl.constexpr,
    WHICH: tl.constexpr,
):
    """Stores the keys (WHICH 0) or the values (1) `x` [N, D_PAD], which are 0 from D on.

    Each is that of the KV head `head` [N], where `real` [N], at `place` of `row`: one number, or int64 [N].
    """
    N: tl.constexpr = x.shape[0]
    D_PAD: tl.constexpr = x.shape[1]
    d = tl.arange(0, D_PAD)
    mask = real[:, None] & (d < D)[None, :]
    # The elements of a value, and how many scales a token has for each head.
    WIDE: tl.constexpr = D // 2 + D // (32 if D % 32 == 0 else 16) * 4 if KIND == INT4 else D
    SCALES: tl.constexpr = 1 if KIND == INT4 else 2
    at = row * ROW + place * (KV * (D + WIDE)) + WHICH * (KV * D)
    to = rows + (at + head * D)[:, None] + d[None, :]
    if KIND == PLAIN:
        tl.store(to, x, mask=mask)
    elif KIND == INT4 and WHICH == 1:
        put_groups(x, rows, scales, at + head * WIDE, real, MOST, LIMIT, D)
    else:
        x = x.to(tl.float32)
        largest = tl.max(tl.abs(x), 1)
        zero = largest < SMALLEST
        safe = tl.where(zero, 1.0, largest)
        scale = tl.where(zero, 0.0, tl.div_rn(safe, tl.full([N], LARGEST, tl.float32)))
        inverse = tl.where(zero, 0.0, tl.div_rn(tl.full([N], LARGEST, tl.float32), safe))
        scaled = tl.minimum(tl.maximum(x * inverse[:, None], -LARGEST), LARGEST)
        if KIND == FP8:
            tl.store(to, to_e4m3(scaled), mask=mask)
        else:
            # Adding 1.5 · 2**23 rounds to whole numbers, half to even.
            whole = (scaled + 12582912.0) - 12582912.0
            tl.store(to, whole.to(tl.int32).to(tl.int8).to(tl.uint8, bitcast=True), mask=mask)
        scale_at = row * (ROW // 4) + PAGE * KV * (D + WIDE) // 4 + (place * SCALES + WHICH) * KV
        tl.store(scales + scale_at + head, scale, mask=real)


@triton.jit(do_not_specialize=["layer"])
def store_kernel(
    key,
    value,
    rows,
    scales,
    slots,
    layer,
    key_token,
    key_head,
    key_dim,
    value_token,
    value_head,
    value_dim,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    MOST: tl.constexpr,
    LIMIT: tl.constexpr,
    ROW: tl.constexpr,
    PAGE: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    KIND: tl.constexpr,
    KV_PAD: tl.constexpr,
):
    """A program for each token (axis 0), and each of its key and its value (axis 1)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    row, place = slot // PAGE + layer, slot % PAGE
    if tl.program_id(1) == 0:
        put(
            key, rows, scales, token, row, place, key_token, key_head, key_dim,
            LARGEST, SMALLEST, MOST, LIMIT, ROW, PAGE, KV, D, D_PAD, KIND, KV_PAD, 0,
        )  # fmt: skip
    else:
        put(
            value, rows, scales, token, row, place, value_token, value_head, value_dim,
            LARGEST, SMALLEST, MOST, LIMIT, ROW, PAGE, KV, D, D_PAD, KIND, KV_PAD, 1,
        )  # fmt: skip


def storing(rows: KVRows) -> dict[str, float]:
    """What a kernel that stores needs beside `geometry`, by the names that it has for them."""
    return {
        "LARGEST": LARGEST.get("int8" if rows.kind == "int4" else rows.kind, 1.0),
        "SMALLEST": SMALLEST,
        "MOST": MOST,
        "LIMIT": LIMIT,
        "KV_PAD": triton.next_power_of_2(rows.kv_heads),
    }


def store(rows: KVRows, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, layer: int) -> None:
    """Writes `key` and `value` [T, KV, D] of one layer, any strides, to `slots` int64 [T]. Twin: `reference.store`."""
    if not key.shape[0]:
        return
    store_kernel[(key.shape[0], 2)](
        key,
        value,
        rows.data,
        rows.scales,
        slots,
        layer,
        *key.stride(),
        *value.stride(),
        **storing(rows),
        **geometry(rows),
        num_warps=4 if rows.kv_heads * rows.dim > 512 else 1,
        **LAUNCH,
    )
