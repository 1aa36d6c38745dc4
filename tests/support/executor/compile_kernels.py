"""Compiles every Triton kernel for CUDA devices that need not be present, with the arguments of its launcher.

    python -m tests.support.executor.compile_kernels 80 90

A launch under the interpreter shows what a kernel computes, not that a compiler accepts it. Prints a line for each
kernel: capability, name, shared memory in bytes, and the bytes of spilled registers of a thread. Run it in a process of
its own without TRITON_INTERPRET: it replaces Triton's driver with one that launches nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from qpdsl.executor.kernels.data.bandits import Bandits
from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind, row_bytes
from qpdsl.executor.kernels.data.paged_batch import Cascade, PagedBatch, Paths, Scoring
from qpdsl.executor.kernels.data.token_draws import HeadWeights, TokenDraws
from qpdsl.executor.kernels.triton import lin_ucb_kernels
from qpdsl.executor.kernels.triton.attention import cascade as triton_cascade
from qpdsl.executor.kernels.triton.attention import decode, merge, prefill, store, tuning
from qpdsl.executor.kernels.triton.heads import dense_head, sample, sparse_head, vocabulary_parts

KERNELS = (
    store.store_kernel,
    decode.decode_kernel,
    merge.merge_kernel,
    prefill.prefill_kernel,
    triton_cascade.prefix_kernel,
    sample.sample_kernel,
    dense_head.dense_kernel,
    sparse_head.sparse_kernel,
    vocabulary_parts.choose_kernel,
    lin_ucb_kernels.arm_kernel,
    lin_ucb_kernels.loss_kernel,
)


class AbsentDriver:
    """The part of a driver that compiling needs."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def batch_of(sequences: int, tokens: int, trees: bool = False) -> PagedBatch:
    width = 64
    integers = torch.zeros(sequences + 1, dtype=torch.int32)
    cascade = Cascade(
        integers, torch.zeros(3, 5, dtype=torch.int32), integers[:-1].clone(), integers[:-1].clone(), 16, 1, 512, 512
    )
    pages = torch.zeros(sequences, width, dtype=torch.int32)
    slots = torch.zeros(tokens, dtype=torch.int64)
    paths = Paths(integers[:-1].clone(), torch.zeros(sequences, 3, dtype=torch.int32)) if trees else None
    return PagedBatch(pages, integers[:-1].clone(), slots, integers, sequences, 4096, tokens, cascade, paths)


def rows_of(kind: RowKind, dtype: torch.dtype, kv_heads: int, dim: int) -> KVRows:
    if kind == "plain":
        return KVRows.plain(torch.zeros(4, 16, 2, kv_heads, dim, dtype=dtype))
    size = row_bytes(kind, dtype, 16, kv_heads, dim)
    return KVRows.quantized(torch.zeros(4, size, dtype=torch.uint8), kind, 16, kv_heads, dim)


def launch(kind: RowKind, dtype: torch.dtype, kv_heads: int, fold: int, dim: int, scoring: Scoring) -> None:
    """Launches all attention kernels once over one geometry."""
    rows = rows_of(kind, dtype, kv_heads, dim)
    new = torch.zeros(16, kv_heads, dim, dtype=dtype)
    query = torch.zeros(16, kv_heads * fold, dim, dtype=dtype)
    out = torch.zeros_like(query)
    batch = batch_of(16, 16)
    store.store(rows, new, new, batch.slots, 1)
    # With trees, in two geometries: one has a window and sinks.
    for trees in (False, True) if dim in (64, 128) else (False,):
        decode.decode(query, rows, batch_of(16, 16, trees), 1, scoring, out)
        prefill.prefill(query, rows, batch_of(16, 256, trees), 1, scoring, out)
    assert batch.cascade is not None
    triton_cascade.cascade(query, rows, batch, batch.cascade, 1, scoring, out)


def launch_heads(dtype: torch.dtype, draws: int, masked: bool, head: HeadWeights) -> None:
    """Launches both heads once."""
    integers = torch.zeros(draws, dtype=torch.int64)
    hidden = torch.zeros(draws, head.weight.shape[1], dtype=dtype)
    drawn = TokenDraws(integers.int(), torch.ones(draws), integers, integers)
    words = torch.zeros(draws, -(-head.weight.shape[0] // 32), dtype=torch.int32)
    dense_head.dense(hidden, head, drawn, *((words, integers.int()) if masked else ()))
    sparse_head.sparse(hidden, head, drawn, torch.zeros(draws + 1, dtype=torch.int32), integers.int(), 100)


def launch_router(routers: int, arms: int, features: int) -> None:
    """Launches both kernels of the router once."""
    known = torch.zeros(routers, arms, features, features + 1, dtype=torch.float64)
    bandits = Bandits(known[..., 1:].contiguous(), known[..., 0].contiguous())
    contexts = torch.zeros(routers, features, dtype=torch.float64)
    taken = lin_ucb_kernels.choose(bandits, contexts, contexts.new_zeros(1))
    lin_ucb_kernels.learn(bandits, contexts, taken, contexts.new_zeros(routers))


def spilled(cubin: bytes) -> int:
    """Bytes of local memory of a thread, by the tool that comes with Triton; -1 where that is missing."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return -1
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    usage = re.search(r"STACK:(\d+).*LOCAL:(\d+)", text.stdout + text.stderr)
    return sum(int(part) for part in usage.groups()) if usage else -1


def main(capabilities: list[int]) -> None:
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        print(capability, self.fn.__name__, kernel.metadata.shared, spilled(kernel.asm["cubin"]), flush=True)
        return kernel

    JITFunction.run = compile_only
    tuning.multiprocessors = lambda device: 132  # type: ignore[assignment]
    for module in (decode, triton_cascade):
        module.multiprocessors = tuning.multiprocessors
    for capability in capabilities:
        driver.set_active(AbsentDriver(capability))
        for caches in KERNELS:
            caches.device_caches.clear()
        launch("plain", torch.bfloat16, 8, 4, 128, Scoring(0.1))
        launch("plain", torch.float32, 2, 7, 80, Scoring(0.1, softcap=30.0))
        launch("int8", torch.float16, 1, 1, 64, Scoring(0.1, window=512, sinks=torch.zeros(1)))
        launch("fp8", torch.bfloat16, 2, 4, 256, Scoring(0.1))
        launch("int4", torch.bfloat16, 2, 4, 128, Scoring(0.1))
        integers = torch.zeros(4, dtype=torch.int64)
        sample.sample(torch.zeros(4, 32_000), torch.ones(4), integers, integers)
        launch_heads(torch.bfloat16, 64, True, HeadWeights(torch.zeros(32_000, 896, dtype=torch.bfloat16)))
        launch_router(16, 3, 6)
        biased = HeadWeights(torch.zeros(32_001, 600), torch.zeros(32_001), 0.5, 30.0)
        launch_heads(torch.float32, 1, False, biased)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
