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
from qpdsl.executor.kernels.triton.common import LAUNCH, geometry
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
    TOKENS: tl.constexpr,
    COUNT: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
    WHOLE: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """The heads [N, D_PAD] float32 numbered `head` [N], where `real` [N], of joined projections from `line` [N] on.

    From `angles` [N] on are the cosines and sines of their positions. Each of TOKENS tokens has as many lines, which
    hold all COUNT heads where norms are WHOLE.
    """
    N: tl.constexpr = head.shape[0]
    d = tl.arange(0, D_PAD)
    mask = real[:, None] & (d < D)[None, :]
    at = head[:, None] * D + d[None, :]
    x = tl.load(line[:, None] + at, mask=mask, other=0.0).to(tl.float32)
    if BIAS:
        x += tl.load(bias + at, mask=mask, other=0.0)
    if NORM:
        square = tl.sum(x * x, 1)
        if WHOLE:
            whole = tl.sum(tl.reshape(square, [TOKENS, N // TOKENS]), 1)
            square = tl.reshape(tl.broadcast_to(whole[:, None], [TOKENS, N // TOKENS]), [N])
        spread = tl.rsqrt(square / (COUNT * D if WHOLE else D) + epsilon)
        x = x * spread[:, None] * tl.load(norms + at, mask=mask, other=0.0)
    if ROTATED > 0:
        turned = real[:, None] & (d < ROTATED)[None, :]
        angle = tl.load(angles[:, None] + d[None, :], mask=turned, other=0.0)
        cos, sin = tl.split(tl.reshape(angle, [N, D_PAD // 2, 2]))
        cos = tl.where((tl.arange(0, D_PAD // 2) < ROTATED // 2)[None, :], cos, 1.0)
        first, second = tl.split(tl.reshape(x, [N, D_PAD // 2, 2]))
        x = tl.reshape(tl.join(first * cos - second * sin, first * sin + second * cos), [N, D_PAD])
    return x


@triton.jit(do_not_specialize=["layer", "count"])
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
    count,
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
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
    WHOLE: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """A program for TOKENS tokens of `count` (axis 0), and each of their keys, values and BLOCK queries (axis 1)."""
    part = tl.program_id(1)
    first = tl.program_id(0).to(tl.int64) * TOKENS
    if part >= 2:
        r = tl.arange(0, TOKENS * BLOCK)
        token, head = first + r // BLOCK, (part - 2) * BLOCK + r % BLOCK
        real = (token < count) & (head < HEADS)
        line = joined + token * ((HEADS + 2 * KV) * D)
        angles = rotations + tl.load(positions + token, mask=real, other=0) * ROTATED
        query = prepared(
            line, bias, norms, angles, head, real, epsilon,
            D, D_PAD, TOKENS, HEADS, BIAS, NORM, WHOLE, ROTATED,
        )  # fmt: skip
        d = tl.arange(0, D_PAD)
        to = line[:, None] + head[:, None] * D + d[None, :]
        tl.store(to, query.to(joined.dtype.element_ty), mask=real[:, None] & (d < D)[None, :])
    else:
        kv_r = tl.arange(0, TOKENS * KV_PAD)
        kv_token, kv_head = first + kv_r // KV_PAD, kv_r % KV_PAD
        there = (kv_token < count) & (kv_head < KV)
        kv_line = joined + kv_token * ((HEADS + 2 * KV) * D)
        slot = tl.load(slots + kv_token, mask=there, other=0)
        row, place = slot // PAGE + layer, slot % PAGE
        if part == 0:
            kv_angles = rotations + tl.load(positions + kv_token, mask=there, other=0) * ROTATED
            key = prepared(
                kv_line, bias, norms, kv_angles, HEADS + kv_head, there, epsilon,
                D, D_PAD, TOKENS, KV, BIAS, NORM, WHOLE, ROTATED,
            )  # fmt: skip
            put_numbers(
                key, rows, scales, row, place, kv_head, there,
                LARGEST, SMALLEST, MOST, LIMIT, ROW, PAGE, KV, D, KIND, 0,
            )  # fmt: skip
        else:
            value = prepared(
                kv_line, bias, norms, kv_line, HEADS + KV + kv_head, there, epsilon,
                D, D_PAD, TOKENS, KV, BIAS, False, False, 0,
            )  # fmt: skip
            put_numbers(
                value, rows, scales, row, place, kv_head, there,
                LARGEST, SMALLEST, MOST, LIMIT, ROW, PAGE, KV, D, KIND, 1,
            )  # fmt: skip


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
    numbers = max(block, constants["KV_PAD"]) * wide
    tokens = max(1, NUMBERS // numbers)
    rotate_store_kernel[(triton.cdiv(len(joined), tokens), 2 + blocks)](
        joined,
        positions,
        slots,
        joined if rotations is None else rotations,
        joined if heads.bias is None else heads.bias,
        joined if heads.norms is None else heads.norms,
        rows.data,
        rows.scales,
        layer,
        len(joined),
        heads.epsilon,
        **constants,
        HEADS=heads.heads,
        TOKENS=tokens,
        BLOCK=block,
        BIAS=heads.bias is not None,
        NORM=heads.norms is not None,
        WHOLE=heads.whole,
        ROTATED=0 if rotations is None else 2 * rotations.shape[1],
        num_warps=min(8, tokens * numbers // 256),
        **LAUNCH,
    )
