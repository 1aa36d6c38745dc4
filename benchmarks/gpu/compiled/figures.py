"""What is counted of a compiled kernel, what must hold of every one, and what counts as worse than before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.gpu.compiled.sass import Counts

# What a trip of a kernel's main loop goes through, and the constants whose product says how many of them. A kernel
# that is not listed has no such loop.
UNITS: dict[str, tuple[str, tuple[str, ...]]] = {
    "attention_kernel": ("key", ("N",)),
    "prefix_kernel": ("key", ("N",)),
    "dense_kernel": ("weight", ("N", "K")),
    "sample_kernel": ("logit", ("BLOCK",)),
}
# Kernels that multiply matrices.
PRODUCTS = {"attention_kernel", "prefix_kernel", "dense_kernel"}

# By what share a count of the main loop may grow.
_SHARES = {"instructions": 0.05, "shortest": 0.05, "narrow": 0.1, "shared": 0.1, "special": 0.1, "convert": 0.1}
_SHARES |= {"double": 0.1, "barriers": 0.1, "local": 0.0}


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """Limits of a multiprocessor (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").

    shared:       bytes of shared memory
    block_shared: the most of them for one block
    """

    warps: int
    blocks: int
    shared: int
    block_shared: int
    registers: int = 65536


MULTIPROCESSORS = {
    80: Multiprocessor(64, 32, 164 << 10, 163 << 10),
    89: Multiprocessor(48, 24, 100 << 10, 99 << 10),
    90: Multiprocessor(64, 32, 228 << 10, 227 << 10),
}
# Bytes of shared memory that the system keeps of each block's.
_RESERVED = 1024


def resident_blocks(capability: int, warps: int, registers: int, shared: int) -> int:
    """How many blocks are on a multiprocessor at a time: the fewest that warps, registers and shared memory allow.

    Registers are given to a warp in pieces of 256, shared memory in pieces of 128 bytes.
    """
    limits = MULTIPROCESSORS[capability]
    each = math.ceil(registers * 32 / 256) * 256
    whole = math.ceil((shared + _RESERVED) / 128) * 128
    return min(limits.blocks, limits.warps // warps, limits.registers // (each * warps), limits.shared // whole)


@dataclass(frozen=True, slots=True)
class Figures:
    """A variant of a kernel, as compiled for one capability.

    case, form:   which model or sizes, and which step of it
    key:          a digest of all that the compiler was given
    warps:        of a block
    registers:    of a thread
    shared:       bytes of shared memory of a block
    local:        bytes of memory of a thread for spilled registers
    blocks:       on a multiprocessor at a time
    whole:        counts of the whole kernel, each instruction once
    unit, units:  what a trip of the main loop goes through, and how many of them
    loop:         counts of a trip of the main loop; None where there is no loop. The main loop is the longest innermost
                  one, of those with products by tensor cores where there are such
    """

    capability: int
    kernel: str
    case: str
    form: str
    key: str
    warps: int
    registers: int
    shared: int
    local: int
    blocks: int
    whole: Counts
    unit: str | None
    units: int
    loop: Counts | None

    @property
    def name(self) -> str:
        return named(self.capability, self.kernel, self.case, self.form)

    @property
    def per_unit(self) -> float | None:
        """Warp instructions that a program executes for one unit."""
        if self.loop is None or self.unit is None:
            return None
        return round(self.loop.instructions * self.warps / self.units, 3)


def named(capability: int, kernel: str, case: str, form: str) -> str:
    """What a variant is called."""
    return f"sm_{capability} {kernel}: {case}, {form}"


def main_loop(loops: list[Counts]) -> Counts | None:
    """The loop that a kernel spends its time in, of its innermost ones."""
    products = [loop for loop in loops if loop.tensor]
    return max(products or loops, key=lambda loop: loop.instructions, default=None)


def unrolled(loops: list[Counts], commits: list[int]) -> int:
    """How many trips of a loop of Triton's the compiler made one of.

    Told by the groups of asynchronous copies, in the machine code against Triton's `commits`; 1 where there are none.
    """
    before, after = sum(commits), sum(loop.commits for loop in loops)
    return max(1, round(after / before)) if before else 1


def units_of(kernel: str, constants: Mapping[str, object]) -> tuple[str | None, int]:
    """The unit of a kernel's main loop, and how many a trip goes through; (None, 1) where it has none.

    Raises ValueError where `UNITS` names a constant that the kernel does not have.
    """
    unit, names = UNITS.get(kernel, (None, ()))
    count = 1
    for name in names:
        value = constants.get(name)
        if not isinstance(value, int):
            raise ValueError(f"`{kernel}` has no constant `{name}`, of which its loop's units are counted")
        count *= value
    return unit, count


def faults(figures: Figures) -> list[str]:
    """What no kernel may do, whatever the table says: each fault of `figures` in words."""
    most = MULTIPROCESSORS[figures.capability].block_shared
    found = []
    if figures.shared > most:
        found.append(f"wants {figures.shared} bytes of shared memory, of {most}")
    elif not figures.blocks:
        found.append("no block fits on a multiprocessor")
    if figures.local:
        found.append(f"spills {figures.local} bytes a thread")
    if figures.loop is not None and figures.kernel in PRODUCTS:
        # Tensor cores have no float32.
        if not figures.loop.tensor and "float32" not in figures.case:
            found.append("multiplies without tensor cores")
        if not figures.loop.wide:
            found.append("loads nothing by 128 bits in its main loop")
    return found


@dataclass(frozen=True, slots=True)
class Changes:
    """In which figures a kernel is worse than before, and in which better, beyond what a change by chance may do."""

    worse: list[str]
    better: list[str]


def changes(old: Figures, new: Figures) -> Changes:
    """Compares two compilations of one variant. A trip of another size is compared by what it goes through."""
    found = Changes([], [])

    def compare(what: str, before: float, after: float, share: float, some: float = 0.0) -> None:
        said = f"{what} {before:.4g} → {after:.4g}"
        if after > before * (1 + share) + some:
            found.worse.append(said)
        elif before > after * (1 + share) + some:
            found.better.append(said)

    compare("spilled bytes", old.local, new.local, 0.0)
    if old.blocks != new.blocks:
        said = f"blocks on a multiprocessor {old.blocks} → {new.blocks}"
        causes = f"registers {old.registers} → {new.registers}, shared memory {old.shared} → {new.shared}"
        (found.worse if new.blocks < old.blocks else found.better).append(f"{said} ({causes})")
    looped = old.loop is not None and new.loop is not None
    was, now = (old.loop, new.loop) if old.loop and new.loop else (old.whole, new.whole)
    unit = (new.unit or "trip") if looped else "block"
    before, after = (old.warps / old.units, new.warps / new.units) if looped else (old.warps, new.warps)
    some = 2 * max(before, after)
    for what, share in _SHARES.items():
        compare(f"{what} a {unit}", getattr(was, what) * before, getattr(now, what) * after, share, some)
    for what in ("tensor", "wide"):
        if getattr(was, what) and not getattr(now, what):
            found.worse.append(f"{what} {getattr(was, what)} → 0")
    return found
