"""What a process holds in memory besides its pages of keys and values: weights, activations, and all else.

Section 6.1 of the thesis on a scalable runtime for LLM inference parts the memory of a GPU so. Weights are counted,
activations follow from the rows of a step, and what is left of the memory that is taken is other: libraries, the
interpreter, copies that were not freed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

# Reading it takes microseconds on Linux, and up to a hundred with CUDA.
_EVERY = 0.01
_STATM = "/proc/self/statm"


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
