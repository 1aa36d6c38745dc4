"""The gate of an MLP: act(gate) · up, written over the gate."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.layer_constants import Activation
from qpdsl.executor.kernels.triton.common import LAUNCH, LOG2E
from qpdsl.executor.kernels.triton.layers.add_norm import NUMBERS

_ROOT = tl.constexpr(math.sqrt(2.0 / math.pi))


@triton.jit(do_not_specialize=["count"])
def gate_kernel(
    widened,
    bias,
    count,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BIAS: tl.constexpr,
    SILU: tl.constexpr,
):
    """A program for each ROWS rows of `count` (axis 0) and BLOCK numbers of the gate (axis 1)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = column < WIDTH
    mask = (row < count)[:, None] & inside
    at = widened + row[:, None] * (2 * WIDTH) + column
    x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=mask, other=0.0).to(tl.float32)
    if BIAS:
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
        widened if bias is None else bias,
        count,
        WIDTH=width,
        BLOCK=block,
        ROWS=rows,
        BIAS=bias is not None,
        SILU=activation == "silu",
        num_warps=4,
        **LAUNCH,
    )
