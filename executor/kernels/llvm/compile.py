"""Compiles LLVM kernels for the machine that they run on, and makes functions of them.

Compiling takes seconds, and most runs need the same kernels, so these stay in the user's cache folder. An entry is
named by a digest of all that its code depends on, and begins with a digest of its own contents. What is not there, is
damaged or cannot be written is compiled anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import threading
from collections.abc import Callable
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import llvmlite
from llvmlite import binding, ir

from qpdsl.executor.checkpoint.cache_folder import cache_folder, keep_file

# Called with addresses and numbers. Nothing is checked, and the interpreter's lock is released during the call.
Function = Callable[..., None]
# Called with a module and a name: adds a function of that name. All that it depends on are its arguments, which have a
# `repr`.
Emitter = partial[None]
_DIGEST_BYTES = 32
# Entries that were not used for longest are removed beyond these bytes.
_MAX_BYTES = 64 << 20


@cache
def vector_width() -> int:
    """How many float32 a vector of this machine holds; 0 where it has none, or no fused multiply-add."""
    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 16
    if features.get("avx2") and features.get("fma"):
        return 8
    return 4 if binding.get_process_triple().startswith(("aarch64", "arm64")) else 0


@cache
def multiplies_pairs() -> bool:
    """Whether a lane takes two products of bfloat16 at once (AVX512-BF16)."""
    return vector_width() == 16 and bool(binding.get_host_cpu_features().get("avx512bf16"))


class Library:
    """Kernels compiled together. Their functions may be called only as long as the library lives.

    What was compiled before, for the same arguments and machine, is read from the user's cache folder.
    """

    def __init__(self, emitters: dict[str, Emitter]) -> None:
        """Each emitter adds the function of its name."""
        machine = _machine()
        functions = [(name, emit.func.__qualname__, emit.args, emit.keywords) for name, emit in emitters.items()]
        kept = cached_object(repr(functions))
        if kept is None:
            kept = _compiled(emitters, machine)
            cache_object(repr(functions), kept)
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
    text, counts = _written(emitters)
    # What LLVM keeps of a module's types and constants goes with their context.
    context = binding.create_context()
    parsed = binding.parse_assembly(text, context)
    del text
    try:
        parsed.verify()
        # The kernels are written in vectors, and unrolled as far as it pays.
        tuning = binding.create_pipeline_tuning_options(speed_level=2)
        tuning.loop_unrolling = tuning.loop_vectorization = tuning.slp_vectorization = False
        builder = binding.create_pass_builder(machine, tuning)
        builder.getModulePassManager().run(parsed, builder)
        return json.dumps(counts).encode() + b"\n" + bytes(machine.emit_object(parsed))
    finally:
        parsed.close()
        context.close()


def _written(emitters: dict[str, Emitter]) -> tuple[str, dict[str, int]]:
    """The functions as LLVM's assembly, and how many arguments each has."""
    # A module is many small objects, all of them in use, which the collector would look at again and again; and they
    # refer to each other, so that it alone frees them: before LLVM makes as many again. What others froze would thaw.
    collects, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    if not frozen:
        gc.freeze()
    try:
        module = ir.Module("qpdsl")
        for name, emit in emitters.items():
            emit(module, name)
        text, counts = str(module), {name: len(module.get_global(name).args) for name in emitters}
        del module
        gc.collect()
        return text, counts
    finally:
        if not frozen:
            gc.unfreeze()
        if collects:
            gc.enable()


def _machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3
    )


def cached_object(what: str) -> bytes | None:
    """The object code of the kernels that `what` describes; None where it is not kept."""
    path = _path(what)
    if path is None:
        return None
    with contextlib.suppress(OSError):
        kept = path.read_bytes()
        digest, code = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
        if digest == blake2b(code, digest_size=_DIGEST_BYTES).digest():
            with contextlib.suppress(OSError):
                os.utime(path)
            return code
    return None


def cache_object(what: str, code: bytes) -> None:
    """Keeps object code, whole or not at all."""
    path = _path(what)
    if path is None:
        return
    keep_file(path, blake2b(code, digest_size=_DIGEST_BYTES).digest() + code)
    with contextlib.suppress(OSError):
        _trim(path.parent)


def _trim(folder: Path) -> None:
    entries = sorted(((entry.stat().st_mtime, entry.stat().st_size, entry) for entry in folder.iterdir()), reverse=True)
    total = 0
    for _, size, entry in entries:
        total += size
        if total > _MAX_BYTES:
            entry.unlink(missing_ok=True)


def _path(what: str) -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    return folder / "kernels" / blake2b(f"{surroundings()}\n{what}".encode(), digest_size=20).hexdigest()


def digest_of_sources(folder: Path) -> str:
    digest = blake2b(digest_size=20)
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


# All sources that kernels are written with, and the numbers that are compiled into them. The digest is taken when they
# are imported: files that change later are not what runs.
_SOURCES = digest_of_sources(Path(__file__).parents[1])


@cache
def surroundings() -> str:
    """What all kernels depend on, in a line: their sources, LLVM, and the processor."""
    return f"{_SOURCES} {llvmlite.__version__} {machine()}"


def machine() -> str:
    """The processor, in a line."""
    return f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"


class Team:
    """Runs a function in several threads at once, while the caller waits.

    Kernels release the interpreter's lock, so the threads run side by side. One job runs at a time. The caller's own
    thread would not do: a signal could raise in it before it begins, and the others would wait for it for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[SimpleQueue[_Job]] = []

    def run(self, threads: int, job: Callable[[int], None]) -> None:
        """Calls `job` with the numbers from 0 to below `threads`, each in a thread of its own, and waits for all.

        Raises what a call of it raised.
        """
        if threads <= 1:
            job(0)
            return
        with self._lock:
            self._start(threads)
            shared = _Job(job)
            errors: list[BaseException] = []
            waiting = iter(self._jobs[:threads])
            # What a signal raises here must wait: the threads need each other, and work on the caller's memory.
            while len(shared.ends) < threads:
                try:
                    for jobs in waiting:
                        jobs.put(shared)
                    while len(shared.ends) < threads:
                        shared.ended.get()
                except BaseException as error:
                    errors.append(error)
        errors += [error for error in shared.ends if error is not None]
        if errors:
            raise errors[0]

    def forget(self) -> None:
        """In a child process, which has none of the threads: they start again when they are needed."""
        self.__init__()  # type: ignore[misc]

    def _start(self, count: int) -> None:
        for number in range(len(self._jobs), count):
            jobs: SimpleQueue[_Job] = SimpleQueue()
            threading.Thread(target=_serve, args=(number, jobs), name=f"kernels {number}", daemon=True).start()
            self._jobs.append(jobs)


class _Job:
    """A function that other threads run, and how it has ended in each: an exception or None."""

    def __init__(self, function: Callable[[int], None]) -> None:
        self.function = function
        self.ends: list[BaseException | None] = []
        # Something is put here after each end.
        self.ended: SimpleQueue[None] = SimpleQueue()


def _serve(number: int, jobs: SimpleQueue[_Job]) -> None:
    while True:
        job = jobs.get()
        try:
            job.function(number)
        except BaseException as error:  # whatever it is, the caller waits for it
            job.ends.append(error)
        else:
            job.ends.append(None)
        job.ended.put(None)
        # A waiting thread must not keep alive what it last worked on.
        del job


TEAM = Team()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TEAM.forget)
