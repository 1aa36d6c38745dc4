"""How much memory the KV of all models may take.

The command line checks amounts before it loads torch, so torch is imported only where a device is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

_BINARY = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_UNITS = {**_BINARY, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_CPU_SHARE = 4
_CPU_MOST = 2 << 30
# What allocators and libraries take beside the tensors of a step.
_CUDA_RESERVE = 0.03


def kv_bytes(amount: int | str | None, device: str, largest_step: Callable[[], None]) -> int:
    """The budget in bytes: the `amount` (see `parse`), or by default as much as is safe.

    By default that is, on a CPU, a quarter of the memory that is free, 2 GiB at the most; on a CUDA device what is free
    less what `largest_step` takes at its peak.
    """
    if amount is not None:
        return parse(amount, lambda: _total_memory(device))
    if not device.startswith("cuda"):
        return min(_meminfo("MemAvailable") // _CPU_SHARE, _CPU_MOST)
    import torch

    peak = _activation_peak(device, largest_step)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(torch.device(device))
    return max(0, int(free - peak - _CUDA_RESERVE * total))


def parse(amount: int | str, total: Callable[[], int] = lambda: 1) -> int:
    """Bytes of "512MiB", "4 GB", "50%" (of `total()` bytes) or a plain number. Raises ValueError."""
    if isinstance(amount, int):
        return amount
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|[a-z]*)\s*", amount.lower())
    if match is not None:
        number, unit = float(match[1]), match[2]
        if unit == "%" and 0 < number <= 100:
            return int(total() * number / 100)
        if unit in _UNITS:
            return int(number * _UNITS[unit])
    raise ValueError(f"`{amount}` is no amount of memory; there is `512MiB`, `4GB`, `50%` of what there is, or bytes")


def _activation_peak(device: str, step: Callable[[], None]) -> int:
    import torch

    torch.cuda.empty_cache()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)


def _total_memory(device: str) -> int:
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.get_device_properties(torch.device(device)).total_memory)
    return _meminfo("MemTotal")


def _meminfo(entry: str) -> int:
    """Bytes of main memory, as /proc/meminfo says; 4 GiB where there is none."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith(f"{entry}:"):
                return int(line.split()[1]) * 1024
    return 4 << 30
