"""Copies between host and device: one each way a step. Only the copy back is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

Numbers = np.ndarray[Any, np.dtype[Any]]

# torch does not annotate it.
_event: Any = torch.cuda.Event
# The next step is laid out while the device may still be copying this one.
_BUFFERS = 2
_ALIGNED = 16
_LEAST_BYTES = 1 << 16


def working_on(device: str) -> AbstractContextManager[object]:
    """Makes the device current in the block: kernels, events and graphs go by that, not by the tensors they use."""
    return torch.cuda.device(device) if device.startswith("cuda") else nullcontext()


class _Buffer:
    """Pinned host memory, and an event for the last copy out of it."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._copied: Any = None

    def room(self, size: int) -> torch.Tensor:
        """uint8 [size], once the last copy out of it is done."""
        if self._copied is not None:
            self._copied.synchronize()
        if size > self._memory.numel():
            room = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
            self._memory = torch.empty(room, dtype=torch.uint8, pin_memory=self._pinned)
        return self._memory[:size]

    def mark_copied(self) -> None:
        """Notes that copies out of it were started."""
        if self._pinned:
            self._copied = self._copied or _event()
            self._copied.record()


class Staging:
    """Brings host arrays to one device, and results back. On a CPU nothing is copied."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._pinned = self._device.type == "cuda"
        self._buffers = [_Buffer(self._pinned) for _ in range(_BUFFERS)]
        self._back = _Buffer(self._pinned)
        self._turn = 0

    def send(self, arrays: Sequence[Numbers], into: torch.Tensor | None = None) -> list[torch.Tensor]:
        """The arrays on the device, by one copy that is not waited for; with `into` uint8, as views of that."""
        if not self._pinned and into is None:
            return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        starts, size = [], 0
        for array in arrays:
            starts.append(size)
            size += -(-array.nbytes // _ALIGNED) * _ALIGNED
        self._turn = (self._turn + 1) % _BUFFERS
        buffer = self._buffers[self._turn]
        host = buffer.room(size)
        memory = host.numpy()
        for start, array in zip(starts, arrays, strict=True):
            memory[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if into is None:
            into = torch.empty(size, dtype=torch.uint8, device=self._device)
        target = into[:size]
        target.copy_(host, non_blocking=True)
        buffer.mark_copied()
        return [
            target[start : start + array.nbytes].view(_TYPES[array.dtype]).view(array.shape)
            for start, array in zip(starts, arrays, strict=True)
        ]

    def fetch(self, tensor: torch.Tensor) -> Numbers:
        """The tensor on the host, once the device has computed it. Overwritten by the next call."""
        if not self._pinned:
            return np.asarray(tensor.numpy())
        flat = tensor.contiguous()
        size = flat.numel() * flat.element_size()
        host = self._back.room(size).view(flat.dtype).view(flat.shape)
        host.copy_(flat, non_blocking=True)
        done = _event()
        done.record()
        done.synchronize()
        return np.asarray(host.numpy())


_TYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.bool_): torch.bool,
}
