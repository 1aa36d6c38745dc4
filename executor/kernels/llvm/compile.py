"""Compiles LLVM kernels for the machine that they run on, and makes functions of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import binding, ir

# Called with addresses and numbers. Nothing is checked, and the interpreter's lock is released during the call.
Function = Callable[..., None]


@cache
def vector_width() -> int:
    """How many float32 a vector of this machine holds; 0 where it has none, or no fused multiply-add."""
    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 16
    if features.get("avx2") and features.get("fma"):
        return 8
    return 4 if binding.get_process_triple().startswith(("aarch64", "arm64")) else 0


class Library:
    """Kernels compiled together. Their functions may be called only as long as the library lives."""

    def __init__(self, emitters: dict[str, Callable[[ir.Module, str], None]]) -> None:
        """Each emitter adds a function of its name to a module."""
        module = ir.Module("qpdsl")
        for name, emit in emitters.items():
            emit(module, name)
        machine = _machine()
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        # The kernels are written in vectors, and unrolled as far as it pays.
        tuning = binding.create_pipeline_tuning_options(speed_level=2)
        tuning.loop_unrolling = tuning.loop_vectorization = tuning.slp_vectorization = False
        builder = binding.create_pass_builder(machine, tuning)
        builder.getModulePassManager().run(parsed, builder)
        self._compiled = binding.create_mcjit_compiler(parsed, machine)
        self._compiled.finalize_object()
        self._counts = {name: len(module.get_global(name).args) for name in emitters}

    def __getitem__(self, name: str) -> Function:
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * self._counts[name])
        return kind(self.address(name))

    def address(self, name: str) -> int:
        """Where a function is, for code that calls it."""
        return int(self._compiled.get_function_address(name))


def _machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3
    )
