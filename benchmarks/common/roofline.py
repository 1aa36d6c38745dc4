"""What the processor could do at best: bytes read a second, and multiply-adds a second, with so many threads.

Two loops in LLVM's language, compiled for this machine. `read` adds up vectors of memory, eight sums side by side;
`fma` multiplies and adds float32 vectors in registers, twelve sums side by side, and `dot` does so with pairs of
bfloat16, where the processor has an instruction for it. Each thread has a part of the memory of its own.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding

Clocks = tuple[float, float]

_SUMS = 8
_CHAINS = 12
_MIN_SECONDS = 0.25
_PASSES = 3
# Multiply-adds of a call, for each lane of each sum.
_ROUNDS = 2_000_000


class Roofline:
    """Rates with `threads` threads, for a second of the wall's clock and for one of processor time, in this order."""

    def __init__(self, threads: int) -> None:
        """Raises LookupError where the processor has no vectors that these loops are written for."""
        features = binding.get_host_cpu_features()
        if features.get("avx512f"):
            self._lanes = 16
        elif features.get("avx2") and features.get("fma"):
            self._lanes = 8
        elif binding.get_process_triple().startswith(("aarch64", "arm64")):
            self._lanes = 4
        else:
            raise LookupError("no vectors with fused multiply-add")
        self._threads = threads
        self._pairs = self._lanes == 16 and bool(features.get("avx512bf16"))
        text = _read(self._lanes) + _chains("fma", self._lanes, _FMA)
        self._engine = _compiled(text + (_chains("dot", self._lanes, _DOT) if self._pairs else ""))

    def read(self, size: int) -> Clocks:
        """Bytes a second of reading `size` bytes again and again: from the caches where they hold them."""
        step = 4 * self._lanes * _SUMS
        part = size // self._threads // step * step
        memory = [np.ones(part // 4, dtype=np.float32) for _ in range(self._threads)]
        read = self._function("read", 3)
        passes = max(1, int(2**28 // max(size, 1)))

        def work(thread: int) -> None:
            out = np.zeros(self._lanes, dtype=np.float32)
            for _ in range(passes):
                read(memory[thread].ctypes.data, part // step, out.ctypes.data)

        return self._rate(work, passes * part * self._threads)

    def multiply_adds(self) -> Clocks:
        """Multiply-adds a second in float32."""
        return self._multiplied("fma", 1)

    def bfloat16_multiply_adds(self) -> Clocks | None:
        """Multiply-adds a second of bfloat16 numbers, summed in float32; None without an instruction for it."""
        return self._multiplied("dot", 2) if self._pairs else None

    def _multiplied(self, name: str, each: int) -> Clocks:
        function = self._function(name, 2)

        def work(thread: int) -> None:
            out = np.zeros(self._lanes, dtype=np.float32)
            function(_ROUNDS, out.ctypes.data)

        return self._rate(work, each * _ROUNDS * _CHAINS * self._lanes * self._threads)

    def _function(self, name: str, arguments: int) -> Callable[..., None]:
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)
        return kind(self._engine.get_function_address(name))

    def _rate(self, work: Callable[[int], None], amount: int) -> Clocks:
        """The best of some passes, after one to warm up."""
        self._timed(work)
        wall = processor = 0.0
        began, passes = time.perf_counter(), 0
        while passes < _PASSES or time.perf_counter() - began < _MIN_SECONDS:
            seconds, cpu = self._timed(work)
            wall, processor = max(wall, amount / seconds), max(processor, amount / cpu)
            passes += 1
        return wall, processor

    def _timed(self, work: Callable[[int], None]) -> Clocks:
        """Seconds of all, and of processor time: the threads' own, as the process' is counted by the tick of others."""
        spent = [0.0] * self._threads

        def run(thread: int) -> None:
            begin = time.thread_time()
            work(thread)
            spent[thread] = time.thread_time() - begin

        others = [threading.Thread(target=run, args=(thread,)) for thread in range(1, self._threads)]
        start = time.perf_counter()
        for other in others:
            other.start()
        run(0)
        for other in others:
            other.join()
        return time.perf_counter() - start, sum(spent)


def _read(lanes: int) -> str:
    """`read(address, steps, out)`: a step takes a vector for each sum."""
    vector = f"<{lanes} x float>"
    lines = [
        "define void @read(i64 %from, i64 %steps, i64 %to) {",
        "entry:",
        "  %start = inttoptr i64 %from to ptr",
        "  %out = inttoptr i64 %to to ptr",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [0, %entry], [%next, %loop]",
        *(f"  %s{n} = phi {vector} [zeroinitializer, %entry], [%t{n}, %loop]" for n in range(_SUMS)),
        f"  %base = mul i64 %i, {_SUMS * lanes}",
    ]
    for n in range(_SUMS):
        lines += [
            f"  %at{n} = add i64 %base, {n * lanes}",
            f"  %p{n} = getelementptr float, ptr %start, i64 %at{n}",
            f"  %v{n} = load {vector}, ptr %p{n}, align 4",
            f"  %t{n} = fadd {vector} %s{n}, %v{n}",
        ]
    lines += ["  %next = add i64 %i, 1", "  %more = icmp ult i64 %next, %steps"]
    lines += ["  br i1 %more, label %loop, label %end", "end:", *_stored(lanes, _SUMS), "}"]
    return "\n".join(lines) + "\n"


# The next value of a sum, as a line of LLVM, and what it calls.
_FMA = (
    "call <{lanes} x float> @llvm.fma.v{lanes}f32(<{lanes} x float> %a, <{lanes} x float> %b, <{lanes} x float> {sum})",
    "declare <{lanes} x float> @llvm.fma.v{lanes}f32(<{lanes} x float>, <{lanes} x float>, <{lanes} x float>)",
)
_DOT = (
    "call <{lanes} x float> @llvm.x86.avx512bf16.dpbf16ps.512(<{lanes} x float> {sum}, <32 x bfloat> %c, "
    "<32 x bfloat> %d)",
    "declare <{lanes} x float> @llvm.x86.avx512bf16.dpbf16ps.512(<{lanes} x float>, <32 x bfloat>, <32 x bfloat>)",
)


def _chains(name: str, lanes: int, instruction: tuple[str, str]) -> str:
    """`name(rounds, out)`: in each round every sum takes one instruction. The factors come from memory, as a guard
    against a compiler that would work them out."""
    vector = f"<{lanes} x float>"
    call, declaration = instruction
    lines = [
        declaration.format(lanes=lanes),
        f"define void @{name}(i64 %rounds, i64 %to) {{",
        "entry:",
        "  %out = inttoptr i64 %to to ptr",
        f"  %a = load volatile {vector}, ptr %out, align 4",
        f"  %b = load volatile {vector}, ptr %out, align 4",
    ]
    if "%c" in call:
        lines += [f"  %c = bitcast {vector} %a to <32 x bfloat>", f"  %d = bitcast {vector} %b to <32 x bfloat>"]
    lines += [
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [0, %entry], [%next, %loop]",
        *(f"  %s{n} = phi {vector} [zeroinitializer, %entry], [%t{n}, %loop]" for n in range(_CHAINS)),
        *(f"  %t{n} = {call.format(lanes=lanes, sum=f'%s{n}')}" for n in range(_CHAINS)),
        "  %next = add i64 %i, 1",
        "  %more = icmp ult i64 %next, %rounds",
        "  br i1 %more, label %loop, label %end",
        "end:",
        *_stored(lanes, _CHAINS),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _stored(lanes: int, sums: int) -> list[str]:
    """Adds the sums up and stores them, so that none is left out as unused."""
    vector = f"<{lanes} x float>"
    lines = [f"  %r1 = fadd {vector} %t0, %t1"]
    lines += [f"  %r{n} = fadd {vector} %r{n - 1}, %t{n}" for n in range(2, sums)]
    return [*lines, f"  store {vector} %r{sums - 1}, ptr %out, align 4", "  ret void"]


def _compiled(text: str) -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=2
    )
    module = binding.parse_assembly(text)
    module.verify()
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def rates(threads: int, size: int) -> dict[str, Any]:
    """All of it for a record, the reads with a working set of `size` bytes."""
    roofline = Roofline(threads)
    bfloat16 = roofline.bfloat16_multiply_adds()
    return {
        "read": list(roofline.read(size)),
        "multiply_adds": list(roofline.multiply_adds()),
        "bfloat16_multiply_adds": list(bfloat16) if bfloat16 else None,
    }
