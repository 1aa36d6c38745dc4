"""What the Triton kernels share: kinds of rows, types, options of a launch, and what they ask of the device."""

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


def architecture() -> int:
    """Ten times the compute capability of the CUDA device that Triton compiles for; 0 under the interpreter."""
    return 0 if INTERPRETED else _architecture(driver.active)


@cache
def _architecture(active: Any) -> int:
    target = active.get_current_target()
    return int(target.arch) if target.backend == "cuda" else 0
