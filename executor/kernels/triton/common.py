"""What the Triton kernels share: kinds of rows, types, options of a launch, and what they ask of the device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from qpdsl.executor.kernels.data.kv_rows import KVRows

LOG2E = tl.constexpr(math.log2(math.e))
# But for PLAIN the numbers of a head have one scale, which is multiplied in after sums. FP8 is taken apart by hand,
# HARD_FP8 by the device's own conversion.
PLAIN, INT8, FP8, HARD_FP8 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
KINDS = {"plain": 0, "int8": 1, "fp8": 2}
DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
INTERPRETED = bool(triton.knobs.runtime.interpret)
# Options of every launch. Products and sums fuse whatever the default of the installed Triton is: the same bits with
# each, and fewer instructions.
LAUNCH = {"enable_fp_fusion": True}


class KernelRows(NamedTuple):
    """`KVRows` as kernels take them: two tensors, and constants of which those that end in _PAD are powers of two.

    Stored elements are of KIND. They are multiplied in the type DOT; None for a kernel that multiplies none.
    """

    data: torch.Tensor
    scales: torch.Tensor
    ROW: tl.constexpr
    PAGE: tl.constexpr
    KV: tl.constexpr
    KV_PAD: tl.constexpr
    D: tl.constexpr
    D_PAD: tl.constexpr
    KIND: tl.constexpr
    DOT: tl.constexpr

    @classmethod
    def of(cls, rows: KVRows) -> KernelRows:
        """For kernels that store."""
        heads, dim = rows.kv_heads, rows.dim
        padded = triton.next_power_of_2(heads), max(16, triton.next_power_of_2(dim))
        numbers = (rows.row_elements, rows.page_size, heads, padded[0], dim, padded[1])
        return cls(rows.data, rows.scales, *map(tl.constexpr, (*numbers, KINDS[rows.kind], None)))


class Strided(NamedTuple):
    """Numbers [tokens, heads, dim] with their strides."""

    data: torch.Tensor
    token: int
    head: int
    dim: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Strided:
        """Any tensor of three dimensions."""
        return cls(tensor, *tensor.stride())


def architecture() -> int:
    """Ten times the compute capability of the CUDA device that Triton compiles for; 0 under the interpreter."""
    return 0 if INTERPRETED else _architecture(driver.active)


@cache
def _architecture(active: Any) -> int:
    target = active.get_current_target()
    return int(target.arch) if target.backend == "cuda" else 0


@contextmanager
def queued(pool: Executor) -> Iterator[list[Future[object]]]:
    """In the block, launches of what is not compiled do nothing; what they want is compiled in the `pool`.

    So what such kernels would write is as it was before. Triton compiles a kernel when it is first launched with its
    kinds of arguments, in seconds, and keeps the code on disk, where a later launch finds it. Its compilers leave the
    interpreter to other threads.
    """
    waiting: dict[tuple[int, Any], Future[object]] = {}
    result: list[Future[object]] = []
    compile_now = JITFunction._do_compile

    def later(self: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any, *rest: Any) -> None:
        if (id(self), key) not in waiting:
            source = self.ASTSource(self, signature, constants, rest[0])
            target = driver.active.get_current_target()
            future = pool.submit(triton.compile, source, target=target, options=options.__dict__)
            waiting[id(self), key] = future
            result.append(future)

    JITFunction._do_compile = later
    try:
        yield result
    finally:
        JITFunction._do_compile = compile_now
