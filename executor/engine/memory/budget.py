"""How much memory the KV of all models may take, and what a process holds besides: weights, activations and the rest.

The command line checks amounts before it loads torch, so torch is imported only where a device is looked at.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_BINARY = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_GROUPS = Path("/proc/self/cgroup")
# Where the two versions of control groups keep a limit, by what `_GROUPS` has before a group's path.
_CONTROL_GROUPS = {"": ("/sys/fs/cgroup", "memory.max"), "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")}
_UNITS = {**_BINARY, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_NO_LIMIT = 1 << 62
_CPU_SHARE = 4
_CPU_MAX = 2 << 30
# What allocators and libraries take beside the tensors of a step, and a desktop or another process that comes later.
_CUDA_RESERVE, _LEAST_RESERVE = 0.03, 1 << 30
# Reading it takes microseconds on Linux, and up to a hundred with CUDA.
_EVERY = 0.01
_STATM = "/proc/self/statm"


def kv_bytes(amount: int | str | None, device: str, largest_step: Callable[[], None], beside: int = 0) -> int:
    """The budget in bytes: the `amount` (see `parse`), or by default as much as is safe.

    By default that is, on a CPU, a quarter of the memory that is free, 2 GiB at the most; on a CUDA device what is free
    less what `largest_step` takes at its peak, less the bytes that steps keep `beside` it, and less a reserve of 3% of
    the device's memory, 1 GiB at the least.
    """
    if amount is not None:
        return parse(amount, lambda: _total_memory(device))
    if not device.startswith("cuda"):
        return min(min(_meminfo("MemAvailable"), main_memory()) // _CPU_SHARE, _CPU_MAX)
    import torch

    peak = _activation_peak(device, largest_step)
    _give_back()
    free, total = torch.cuda.mem_get_info(torch.device(device))
    return max(0, int(free - peak - beside - max(_CUDA_RESERVE * total, _LEAST_RESERVE)))


def parse(amount: int | str, total: Callable[[], int] = lambda: 1) -> int:
    """Bytes of "512MiB", "4 GB", "50%" (of `total()` bytes) or a plain number. Raises ValueError."""
    if isinstance(amount, int):
        return amount
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|[a-z]*)\s*", amount.lower())
    if match is not None:
        number, unit = float(match[1]), match[2]
        if unit == "%" and 0 < number <= 100:
            return int(total() * number / 100)
        if unit in _UNITS and number < _NO_LIMIT:
            return int(number * _UNITS[unit])
    there_is = "there is `512MiB`, `4GB`, `50%` of what there is, or bytes"
    raise ValueError(f"`{amount[:40]}` is no amount of memory; {there_is}")


def _activation_peak(device: str, step: Callable[[], None]) -> int:
    import torch

    _give_back()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)


def _give_back() -> None:
    """Gives the device what nobody uses, tensors in circles of garbage included."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def _total_memory(device: str) -> int:
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.get_device_properties(torch.device(device)).total_memory)
    return main_memory()


def trim_heap() -> None:
    """Gives the system what the heap has kept of memory that is free again, where its library can (glibc).

    Reading a tokenizer leaves 200 MB of it, unpacking weights as much.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(ctypes.c_size_t(0))


def main_memory() -> int:
    """Bytes of main memory that this process may use: what the machine has, or its own limit or its control groups'."""
    own = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits = [_meminfo("MemTotal"), _NO_LIMIT if own == resource.RLIM_INFINITY else own]
    for line in _GROUPS.read_text().splitlines() if _GROUPS.is_file() else ():
        _, controllers, path = line.split(":", 2)
        root, file = _CONTROL_GROUPS.get(controllers, ("", ""))
        folder = Path(f"{root}{path}")
        limits += [_limit_in(parent / file) for parent in (folder, *folder.parents) if root and file]
    return min(limits)


def amount_text(size: int) -> str:
    """Bytes for people: `1.5 GiB`."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size} bytes"


def _limit_in(file: Path) -> int:
    """The bytes that a file names; where it names none, more than any machine has."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return _NO_LIMIT


def _meminfo(entry: str) -> int:
    """Bytes of main memory, as /proc/meminfo says; 4 GiB where there is none."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith(f"{entry}:"):
                return int(line.split()[1]) * 1024
    return 4 << 30


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a model's weights that a step reads, of a step's activations, and that are taken in all.

    `resident` is 0 where the system does not tell.
    """

    weights: int = 0
    activations: int = 0
    resident: int = 0


class ResidentMemory:
    """The bytes that are taken: on a CPU what of the process lies in main memory, else what of the device is not free.

    They are read at most a hundred times a second.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._read_at = -_EVERY
        self._bytes = 0

    def bytes(self) -> int:
        now = time.monotonic()
        if now - self._read_at >= _EVERY:
            self._read_at = now
            self._bytes = self._device_bytes() if self._device.startswith("cuda") else _process_bytes()
        return self._bytes

    def _device_bytes(self) -> int:
        import torch

        free, total = torch.cuda.mem_get_info(torch.device(self._device))
        return int(total - free)


def _process_bytes() -> int:
    try:
        with open(_STATM, "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
