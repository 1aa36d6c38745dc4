"""A product joins the residual stream, and the next norm is taken of the sum, in one pass over each row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.layer_constants import Addition, NormWeights
from qpdsl.executor.kernels.triton.common import LAUNCH

# About so many numbers are a program's.
NUMBERS = 1024


@triton.jit(do_not_specialize=["count"])
def add_norm_kernel(
    residual,
    product,
    bias,
    added_weight,
    weight,
    hidden,
    count,
    scale,
    added_epsilon,
    epsilon,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ADDED: tl.constexpr,
    BIAS: tl.constexpr,
    ADDED_NORM: tl.constexpr,
    NORM: tl.constexpr,
):
    """A program for each ROWS rows of `count`."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    # As a matrix of one row, so that weights are loaded by the threads that have the numbers below them.
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < WIDTH
    mask = (row < count)[:, None] & inside
    at = row[:, None] * WIDTH + column
    x = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    # What is loaded here arrives while sums are taken.
    if NORM:
        gain = tl.load(weight + column, mask=inside, other=0.0)
    if ADDED:
        y = tl.load(product + at, mask=mask, other=0.0).to(tl.float32)
        if BIAS:
            y += tl.load(bias + column, mask=inside, other=0.0)
        if ADDED_NORM:
            added_gain = tl.load(added_weight + column, mask=inside, other=0.0)
            y = y * tl.rsqrt(tl.sum(y * y, 1) / WIDTH + added_epsilon)[:, None] * added_gain
        # The norm is of what is stored, so that a row which leaves after this layer has the same.
        x = (x + scale * y).to(residual.dtype.element_ty)
        tl.store(residual + at, x, mask=mask)
        x = x.to(tl.float32)
    if NORM:
        x = x * tl.rsqrt(tl.sum(x * x, 1) / WIDTH + epsilon)[:, None] * gain
        tl.store(hidden + at, x.to(hidden.dtype.element_ty), mask=mask)


def add_norm(
    residual: torch.Tensor, product: torch.Tensor | None, addition: Addition | None, norm: NormWeights | None
) -> torch.Tensor:
    """As `layers.add_norm`. Twin: `layer_twins.add_norm`."""
    count, width = residual.shape
    hidden = residual if norm is None else torch.empty_like(residual)
    if not count:
        return hidden
    bias, added = (None, None) if addition is None else (addition.bias, addition.norm)
    block = triton.next_power_of_2(width)
    rows = max(1, NUMBERS // block)
    add_norm_kernel[(triton.cdiv(count, rows),)](
        residual,
        residual if product is None else product,
        residual if bias is None else bias,
        residual if added is None else added.weight,
        residual if norm is None else norm.weight,
        hidden,
        count,
        1.0 if addition is None else addition.scale,
        0.0 if added is None else added.epsilon,
        0.0 if norm is None else norm.epsilon,
        WIDTH=width,
        BLOCK=block,
        ROWS=rows,
        ADDED=product is not None,
        BIAS=bias is not None,
        ADDED_NORM=added is not None,
        NORM=norm is not None,
        # Eight numbers a thread are one load of 16 bytes in 16 bits.
        num_warps=min(16, rows * block // 256),
        **LAUNCH,
    )
    return hidden
