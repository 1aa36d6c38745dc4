"""Compiles LLVM kernels for the machine that they run on, and makes functions of them."""

from __future__ import annotations

import ctypes
import gc
import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from llvmlite import binding, ir

from qpdsl.executor.kernels.llvm.jit import object_cache

# Called with addresses and numbers. Nothing is checked, and the interpreter's lock is released during the call.
Function = Callable[..., None]
# Called with a module and a name: adds a function of that name. All that it depends on are its arguments, which have a
# `repr`.
Emitter = partial[None]


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
    """Kernels compiled together. Their functions may be called only as long as the library lives.

    What was compiled before, for the same arguments and machine, is read from the user's cache folder.
    """

    def __init__(self, emitters: dict[str, Emitter]) -> None:
        """Each emitter adds the function of its name."""
        machine = _machine()
        functions = [(name, emit.func.__qualname__, emit.args, emit.keywords) for name, emit in emitters.items()]
        kept = object_cache.find(repr(functions))
        if kept is None:
            kept = _compiled(emitters, machine)
            object_cache.keep(repr(functions), kept)
        counts, _, code = kept.partition(b"\n")
        self._counts: dict[str, int] = json.loads(counts)
        # The engine takes over the machine. Its own module stays empty.
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
        self._engine.add_object_file(binding.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def __getitem__(self, name: str) -> Function:
        return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * self._counts[name])(self.address(name))

    def address(self, name: str) -> int:
        """Where a function is, for code that calls it."""
        return int(self._engine.get_function_address(name))


def _compiled(emitters: dict[str, Emitter], machine: Any) -> bytes:
    """How many arguments each function has, as JSON in a line of its own, and then the object code."""
    module = ir.Module("qpdsl")
    # A module is many small objects, all of them in use, which the collector would look at again and again.
    collects = gc.isenabled()
    gc.disable()
    try:
        for name, emit in emitters.items():
            emit(module, name)
        parsed = binding.parse_assembly(str(module))
    finally:
        if collects:
            gc.enable()
    parsed.verify()
    # The kernels are written in vectors, and unrolled as far as it pays.
    tuning = binding.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_unrolling = tuning.loop_vectorization = tuning.slp_vectorization = False
    builder = binding.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(parsed, builder)
    counts = {name: len(module.get_global(name).args) for name in emitters}
    return json.dumps(counts).encode() + b"\n" + bytes(machine.emit_object(parsed))


def _machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3
    )
