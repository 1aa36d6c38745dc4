"""Catches the launches of Triton kernels and compiles them, for CUDA devices that need not be there.

A launch is caught where Triton would compile it, so it has the constants, types and alignments of a real one. Tensors
lie on the host, and are not read. Wants a process of its own without TRITON_INTERPRET: Triton's driver stays replaced.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from qpdsl.executor.kernels import triton as kernels

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
# Every device of these is as large as an H100 here, where a launcher asks for the number of multiprocessors.
_MULTIPROCESSORS = 132


@dataclass(frozen=True, slots=True)
class Launch:
    """One variant of a kernel for one capability.

    constants: what the kernel's `constexpr` arguments are, by name
    key:       a digest of all that shapes the compiler's code, and of its version
    """

    capability: int
    kernel: str
    constants: dict[str, Any] = field(hash=False)
    key: str
    source: Any = field(hash=False)
    options: Any = field(hash=False)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler made of a launch.

    warps:     of a block
    registers: of a thread
    shared:    bytes of shared memory of a block that its launch asks for
    local:     bytes of memory of a thread, for spilled registers and the stack
    commits:   groups of asynchronous copies in a trip of each innermost loop, before the last compiler unrolls loops
    code:      what `cuobjdump -sass` prints
    """

    warps: int
    registers: int
    shared: int
    local: int
    commits: list[int]
    code: str


class _AbsentDriver:
    """The part of a driver that catching a launch needs. Triton keeps devices apart, so each capability is one."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0


@cache
def _functions() -> list[Any]:
    """Every function in our kernels' modules that Triton compiles."""
    for module in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}."):
        importlib.import_module(module.name)
    modules = [module for name, module in sys.modules.items() if name.startswith(kernels.__name__)]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, JITFunction)]
    return list({id(function): function for function in found}.values())


def kernel_names() -> set[str]:
    """What our kernels are called: those of the functions that programs begin with."""
    return {function.fn.__name__ for function in _functions() if function.fn.__name__.endswith("_kernel")}


@cache
def _digests() -> dict[int, str]:
    """Of each of our kernels' functions, by its id, a digest that does not depend on where in its file it stands.

    Triton's own does, for the sake of debuggers: a line more above would have everything compiled anew.
    """
    lines = [(function, function.starting_line_number) for function in _functions()]
    for function, _ in lines:
        function.starting_line_number, function.hash = 0, None
    digests = {id(function): function.cache_key for function, _ in lines}
    for function, line in lines:
        function.starting_line_number, function.hash = line, None
    return digests


def _key(source: Any, *rest: str) -> str:
    """A digest of a source and whatever else is given to the compiler."""
    own = source.fn.cache_key
    source.fn.hash = _digests()[id(source.fn)]
    try:
        given = " ".join((triton.__version__, source.hash(), *rest))
    finally:
        source.fn.hash = own
    return hashlib.sha256(given.encode()).hexdigest()[:16]


@contextmanager
def _caught(capability: int, found: dict[str, Launch]) -> Iterator[None]:
    """Adds to `found`, by their keys, the kernels that are launched meanwhile, and runs none."""
    backend = make_backend(GPUTarget("cuda", capability, 32))

    def catch(self: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any, *rest: Any) -> None:
        source = self.ASTSource(self, signature, constants, rest[0])
        digest = _key(source, backend.hash(), options.hash())
        named = {_named(signature, path): getattr(value, "value", value) for path, value in constants.items()}
        found.setdefault(digest, Launch(capability, self.fn.__name__, named, digest, source, options))

    _digests()
    replaced: list[tuple[Any, str, Any]] = [(JITFunction, "_do_compile", catch)]
    for name, loaded in list(sys.modules.items()):
        if name.startswith("qpdsl.executor.kernels"):
            for function, value in (("on_device", True), ("multiprocessors", _MULTIPROCESSORS)):
                if hasattr(loaded, function):
                    replaced.append((loaded, function, lambda *_, value=value: value))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    driver.set_active(_AbsentDriver(capability))
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _named(signature: dict[str, Any], path: tuple[int, ...]) -> str:
    """The name of a constant, whose path is the place of its argument, and its places in tuples within that."""
    name, found = list(signature.items())[path[0]]
    for place in path[1:]:
        name, found = getattr(found, "_fields", range(len(found)))[place], found[place]
    return str(name)


def launches_of(capability: int, launch: Callable[[], object]) -> list[Launch]:
    """The variants of kernels that `launch()` would run on a device of `capability`, without compiling them."""
    found: dict[str, Launch] = {}
    with _caught(capability, found):
        launch()
    return list(found.values())


def compiled(launch: Launch) -> Compiled:
    """Compiles a launch; Triton keeps the result in its cache."""
    kernel = triton.compile(
        launch.source, target=GPUTarget("cuda", launch.capability, 32), options=launch.options.__dict__
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = _printed("-res-usage", file.name)
        code = _printed("-sass", file.name)
    numbers = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return Compiled(
        warps=kernel.metadata.num_warps,
        registers=numbers["REG"],
        shared=kernel.metadata.shared,
        local=numbers["STACK"] + numbers["LOCAL"],
        commits=_commits(kernel.asm["ttgir"]),
        code=code,
    )


def _printed(option: str, file: str) -> str:
    done = subprocess.run([TOOLS / "cuobjdump", option, file], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def _commits(module: str) -> list[int]:
    """Of each innermost loop of Triton's own code the groups of asynchronous copies that a trip begins."""
    counts: list[int] = []
    # Of each open loop: the depth of its braces, its groups, and whether there is a loop inside.
    opened: list[tuple[int, int, bool]] = []
    depth = 0
    for line in module.splitlines():
        if "ttg.async_commit_group" in line and opened:
            level, count, outer = opened[-1]
            opened[-1] = level, count + 1, outer
        grown = line.count("{") - line.count("}")
        if re.search(r"\bscf\.(for|while)\b", line) and grown > 0:
            opened = [(level, count, True) for level, count, _ in opened] + [(depth, 0, False)]
        depth += grown
        while opened and depth <= opened[-1][0]:
            _, count, outer = opened.pop()
            if not outer:
                counts.append(count)
    return counts
