"""What lies between the matrix products of a decoder's layer, as `kernels/layers.py` describes it: one kernel each.

`add_norm`: a product joins the residual stream, and the next norm is taken of the sum, in one pass over each row.
`rotate_store`: queries, keys and values from their joined projection, with biases, norms of heads and rotations; keys
and values are written into their pages, quantized where the rows are. `gate`: act(gate) · up, written over the gate.

A program has about a thousand numbers, so that one row keeps several multiprocessors busy where no sum needs all of it.
How many rows a program has depends on their width alone: a row's bits are its own.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.layer_constants import Activation, Addition, HeadConstants, NormWeights
from qpdsl.executor.kernels.triton.common import LAUNCH, LOG2E, KernelRows
from qpdsl.executor.kernels.triton.stored_numbers import put

# About so many numbers are a program's.
NUMBERS = 1024
_ROOT = tl.constexpr(math.sqrt(2.0 / math.pi))


@triton.jit(do_not_specialize=["count"])
def add_norm_kernel(
    residual,
    product,
    addition,
    norm,
    hidden,
    count,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A program for each ROWS rows of `count`. `product` and `norm` are None where there are none."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    # As a matrix of one row, so that weights are loaded by the threads that have the numbers below them.
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < WIDTH
    mask = (row < count)[:, None] & inside
    at = row[:, None] * WIDTH + column
    x = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    # What is loaded here arrives while sums are taken.
    if norm is not None:
        gain = tl.load(norm.weight + column, mask=inside, other=0.0)
    if product is not None:
        y = tl.load(product + at, mask=mask, other=0.0).to(tl.float32)
        if addition.bias is not None:
            y += tl.load(addition.bias + column, mask=inside, other=0.0)
        if addition.norm is not None:
            added_gain = tl.load(addition.norm.weight + column, mask=inside, other=0.0)
            y = y * tl.rsqrt(tl.sum(y * y, 1) / WIDTH + addition.norm.epsilon)[:, None] * added_gain
        # The norm is of what is stored, so that a row which leaves after this layer has the same.
        x = (x + addition.scale * y).to(residual.dtype.element_ty)
        tl.store(residual + at, x, mask=mask)
        x = x.to(tl.float32)
    if norm is not None:
        x = x * tl.rsqrt(tl.sum(x * x, 1) / WIDTH + norm.epsilon)[:, None] * gain
        tl.store(hidden + at, x.to(hidden.dtype.element_ty), mask=mask)


def add_norm(
    residual: torch.Tensor, product: torch.Tensor | None, addition: Addition | None, norm: NormWeights | None
) -> torch.Tensor:
    """As `layers.add_norm`. Twin: `layer_twins.add_norm`."""
    count, width = residual.shape
    hidden = residual if norm is None else torch.empty_like(residual)
    if not count:
        return hidden
    block = triton.next_power_of_2(width)
    rows = max(1, NUMBERS // block)
    add_norm_kernel[(triton.cdiv(count, rows),)](
        residual,
        product,
        addition,
        norm,
        hidden,
        count,
        WIDTH=width,
        BLOCK=block,
        ROWS=rows,
        # Eight numbers a thread are one load of 16 bytes in 16 bits.
        num_warps=min(16, rows * block // 256),
        **LAUNCH,
    )
    return hidden


@triton.jit
def prepared(
    line,
    bias,
    norms,
    angles,
    head,
    real,
    epsilon,
    rows,
    TOKENS: tl.constexpr,
    COUNT: tl.constexpr,
    WHOLE: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """The heads [N, D_PAD] float32 numbered `head` [N], where `real` [N], of joined projections from `line` [N] on.

    Biases and norms may be None. From `angles` [N] on are the cosines and sines of their positions. Each of TOKENS
    tokens has as many lines, which hold all COUNT heads where norms are WHOLE.
    """
    N: tl.constexpr = head.shape[0]
    D: tl.constexpr = rows.D
    D_PAD: tl.constexpr = rows.D_PAD
    d = tl.arange(0, D_PAD)
    mask = real[:, None] & (d < D)[None, :]
    at = head[:, None] * D + d[None, :]
    x = tl.load(line[:, None] + at, mask=mask, other=0.0).to(tl.float32)
    if bias is not None:
        x += tl.load(bias + at, mask=mask, other=0.0)
    if norms is not None:
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
    layer,
    count,
    epsilon,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """A program for TOKENS tokens of `count` (axis 0), and each of their keys, values and BLOCK queries (axis 1)."""
    KV: tl.constexpr = rows.KV
    D: tl.constexpr = rows.D
    part = tl.program_id(1)
    first = tl.program_id(0).to(tl.int64) * TOKENS
    if part >= 2:
        r = tl.arange(0, TOKENS * BLOCK)
        token, head = first + r // BLOCK, (part - 2) * BLOCK + r % BLOCK
        real = (token < count) & (head < HEADS)
        line = joined + token * ((HEADS + 2 * KV) * D)
        angles = rotations + tl.load(positions + token, mask=real, other=0) * ROTATED
        query = prepared(line, bias, norms, angles, head, real, epsilon, rows, TOKENS, HEADS, WHOLE, ROTATED)
        d = tl.arange(0, rows.D_PAD)
        to = line[:, None] + head[:, None] * D + d[None, :]
        tl.store(to, query.to(joined.dtype.element_ty), mask=real[:, None] & (d < D)[None, :])
    else:
        kv_r = tl.arange(0, TOKENS * rows.KV_PAD)
        kv_token, kv_head = first + kv_r // rows.KV_PAD, kv_r % rows.KV_PAD
        there = (kv_token < count) & (kv_head < KV)
        kv_line = joined + kv_token * ((HEADS + 2 * KV) * D)
        slot = tl.load(slots + kv_token, mask=there, other=0)
        row, place = slot // rows.PAGE + layer, slot % rows.PAGE
        if part == 0:
            kv_angles = rotations + tl.load(positions + kv_token, mask=there, other=0) * ROTATED
            key_head = HEADS + kv_head
            key = prepared(kv_line, bias, norms, kv_angles, key_head, there, epsilon, rows, TOKENS, KV, WHOLE, ROTATED)
            put(key, rows, row, place, kv_head, there, 0)
        else:
            value_head = HEADS + KV + kv_head
            value = prepared(kv_line, bias, None, kv_line, value_head, there, epsilon, rows, TOKENS, KV, False, 0)
            put(value, rows, row, place, kv_head, there, 1)


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
    kept = KernelRows.of(rows)
    wide = kept.D_PAD.value
    # A norm over all queries needs them in one program.
    block = triton.next_power_of_2(heads.heads)
    if heads.norms is None or not heads.whole:
        block = min(block, max(1, NUMBERS // wide))
    # Queries to which nothing is done stay as they are.
    idle = heads.bias is None and heads.norms is None and rotations is None
    blocks = 0 if idle else triton.cdiv(heads.heads, block)
    numbers = max(block, kept.KV_PAD.value) * wide
    tokens = max(1, NUMBERS // numbers)
    rotate_store_kernel[(triton.cdiv(len(joined), tokens), 2 + blocks)](
        joined,
        positions,
        slots,
        joined if rotations is None else rotations,
        heads.bias,
        heads.norms,
        kept,
        layer,
        len(joined),
        heads.epsilon,
        HEADS=heads.heads,
        TOKENS=tokens,
        BLOCK=block,
        WHOLE=heads.whole,
        ROTATED=0 if rotations is None else 2 * rotations.shape[1],
        num_warps=min(8, tokens * numbers // 256),
        **LAUNCH,
    )


@triton.jit(do_not_specialize=["count"])
def gate_kernel(widened, bias, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, SILU: tl.constexpr):
    """A program for each ROWS rows of `count` (axis 0) and BLOCK numbers of the gate (axis 1)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = column < WIDTH
    mask = (row < count)[:, None] & inside
    at = widened + row[:, None] * (2 * WIDTH) + column
    x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=mask, other=0.0).to(tl.float32)
    if bias is not None:
        x += tl.load(bias + column, mask=inside, other=0.0)
        up += tl.load(bias + WIDTH + column, mask=inside, other=0.0)
    # Both are x · sigmoid(z), as (1 + tanh y) / 2 = sigmoid(2y). The exponential may overflow, which gives 0.
    z = x if SILU else 2.0 * _ROOT * (x + 0.044715 * x * x * x)
    active = x / (1.0 + tl.exp2(-z * LOG2E))
    tl.store(at, (active * up).to(widened.dtype.element_ty), mask=mask)


def gate(widened: torch.Tensor, bias: torch.Tensor | None, activation: Activation) -> None:
    """As `layers.gate`. Twin: `layer_twins.gate`."""
    count, width = widened.shape[0], widened.shape[1] // 2
    if not count:
        return
    block = min(NUMBERS, triton.next_power_of_2(width))
    rows = NUMBERS // block
    gate_kernel[(triton.cdiv(count, rows), triton.cdiv(width, block))](
        widened,
        bias,
        count,
        WIDTH=width,
        BLOCK=block,
        ROWS=rows,
        SILU=activation == "silu",
        num_warps=4,
        **LAUNCH,
    )
