"""Queries, keys and values from their joined projection: biases, norms of heads and rotations; keys and values are
written into their pages, quantized where the rows are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.layer_constants import HeadConstants
from qpdsl.executor.kernels.triton.attention.store import put_numbers, storing
from qpdsl.executor.kernels.triton.common import geometry
from qpdsl.executor.kernels.triton.layers.add_norm import NUMBERS


@triton.jit
def prepared(
    line,
    bias,
    norms,
    angles,
    head,
    real,
    epsilon,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    COUNT: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
    WHOLE: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """The heads [N, D_PAD] float32 numbered `head` [N], where `real`, of a token's joined projection at `line`.

    Of `angles` on are the cosines and sines of its position. COUNT: the heads over which WHOLE norms are taken.
    """
    d = tl.arange(0, D_PAD)
    mask = real[:, None] & (d < D)[None, :]
    at = head[:, None] * D + d[None, :]
    x = tl.load(line + at, mask=mask, other=0.0).to(tl.float32)
    if BIAS:
        x += tl.load(bias + at, mask=mask, other=0.0)
    if NORM:
        square = tl.sum(x * x, 1)
        if WHOLE:
            spread = tl.rsqrt(tl.sum(square, 0) / (COUNT * D) + epsilon)
            x = x * spread
        else:
            x = x * tl.rsqrt(square / D + epsilon)[:, None]
        x *= tl.load(norms + at, mask=mask, other=0.0)
    if ROTATED > 0:
        pair = tl.arange(0, D_PAD // 2)
        turned = pair < ROTATED // 2
        cos = tl.load(angles + 2 * pair, mask=turned, other=1.0)[None, :]
        sin = tl.load(angles + 2 * pair + 1, mask=turned, other=0.0)[None, :]
        first, second = tl.split(tl.reshape(x, [x.shape[0], D_PAD // 2, 2]))
        x = tl.reshape(tl.join(first * cos - second * sin, first * sin + second * cos), [x.shape[0], D_PAD])
    return x


@triton.jit(do_not_specialize=["layer"])
def rotate_store_kernel(
    joined,
    positions,
    slots,
    rotations,
    bias,
    norms,
    rows,
    scales,
    layer,
    epsilon,
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
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
    WHOLE: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """A program for each token (axis 0), and each of its keys, its values and BLOCK of its queries (axis 1)."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    line = joined + token * ((HEADS + 2 * KV) * D)
    angles = rotations + tl.load(positions + token) * ROTATED
    if part >= 2:
        head = (part - 2) * BLOCK + tl.arange(0, BLOCK)
        x = prepared(
            line, bias, norms, angles, head, head < HEADS, epsilon,
            D, D_PAD, HEADS, BIAS, NORM, WHOLE, ROTATED,
        )  # fmt: skip
        d = tl.arange(0, D_PAD)
        mask = (head < HEADS)[:, None] & (d < D)[None, :]
        tl.store(line + head[:, None] * D + d[None, :], x.to(joined.dtype.element_ty), mask=mask)
    else:
        slot = tl.load(slots + token)
        row, place = slot // PAGE + layer, slot % PAGE
        head = tl.arange(0, KV_PAD)
        if part == 0:
            key = prepared(
                line, bias, norms, angles, HEADS + head, head < KV, epsilon,
                D, D_PAD, KV, BIAS, NORM, WHOLE, ROTATED,
            )  # fmt: skip
            put_numbers(key, rows, scales, row, place, LARGEST, SMALLEST, MOST, LIMIT, ROW, PAGE, KV, D, KIND, 0)
        else:
            value = prepared(
                line, bias, norms, angles, HEADS + KV + head, head < KV, epsilon,
                D, D_PAD, KV, BIAS, False, False, 0,
            )  # fmt: skip
            put_numbers(value, rows, scales, row, place, LARGEST, SMALLEST, MOST, LIMIT, ROW, PAGE, KV, D, KIND, 1)


def rotate_store(
    joined: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    rotations: torch.Tensor | None,
    heads: HeadConstants,
    rows: KVRows,
    layer: int,
) -> None:
    """As `layers.rotate_store`. Twin: `layer_twins.rotate_store`."""
    if not len(joined):
        return
    constants = {**geometry(rows), **storing(rows)}
    wide = constants["D_PAD"]
    # A norm over all queries needs them in one program.
    block = triton.next_power_of_2(heads.heads)
    if heads.norms is None or not heads.whole:
        block = min(block, max(1, NUMBERS // wide))
    # Queries to which nothing is done stay as they are.
    idle = heads.bias is None and heads.norms is None and rotations is None
    blocks = 0 if idle else triton.cdiv(heads.heads, block)
    rotate_store_kernel[(len(joined), 2 + blocks)](
        joined,
        positions,
        slots,
        joined if rotations is None else rotations,
        joined if heads.bias is None else heads.bias,
        joined if heads.norms is None else heads.norms,
        rows.data,
        rows.scales,
        layer,
        heads.epsilon,
        **constants,
        HEADS=heads.heads,
        BLOCK=block,
        BIAS=heads.bias is not None,
        NORM=heads.norms is not None,
        WHOLE=heads.whole,
        ROTATED=0 if rotations is None else 2 * rotations.shape[1],
        num_warps=min(8, max(1, max(block, constants["KV_PAD"]) * wide // 256)),
    )
