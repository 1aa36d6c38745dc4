"""Copies between host and device. Only a copy back is waited for, and only by who asks for what it brings."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch

Numbers = np.ndarray[Any, np.dtype[Any]]
# torch does not annotate it.
_event: Any = torch.cuda.Event
_ALIGNED = 16
_MIN_BYTES = 1 << 16


def working_on(device: str) -> AbstractContextManager[object]:
    """Makes the device current in the block: kernels, events and graphs go by that, not by the tensors they use."""
    return torch.cuda.device(device) if device.startswith("cuda") else nullcontext()


class StreamMark(Protocol):
    """A place in what a device was given to do."""

    def set(self) -> None:
        """Puts it behind all that was started until now."""
        ...

    def reached(self) -> bool:
        """Whether all that came before is done. It never waits."""
        ...

    def wait(self) -> None:
        """Returns once all that came before is done."""
        ...


class Lane(Protocol):
    """What carries bytes between host and device, in the order of the calls and with what is computed there.

    The host goes on meanwhile. Host memory that is copied from or to must stay as it is until a later mark is reached.
    """

    def host_memory(self, size: int) -> torch.Tensor:
        """uint8 [size] on the host that the device can copy from and to by itself."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Starts a copy; one of both lies in `host_memory`."""
        ...

    def mark(self) -> StreamMark:
        """A mark that is still to be set."""
        ...


class _CudaMark:
    def __init__(self) -> None:
        self._event = _event()

    def set(self) -> None:
        self._event.record()

    def reached(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()


class CudaLane:
    """The current stream of the current CUDA device."""

    def host_memory(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def mark(self) -> StreamMark:
        return _CudaMark()


def lane_to(device: str) -> Lane | None:
    """The lane to a device; None where its memory is the host's."""
    return CudaLane() if device.startswith("cuda") else None


class _Buffer:
    """Host memory of a lane, with a mark behind the last copy from or to it."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.done = lane.mark()

    def room(self, size: int) -> torch.Tensor:
        """uint8 [size]. The last copy must be done, and what it left is gone."""
        if size > self._memory.numel():
            self._memory = self._lane.host_memory(max(_MIN_BYTES, 1 << (size - 1).bit_length()))
        return self._memory[:size]


class Fetch:
    """A copy back to the host that may be under way."""

    def __init__(self, numbers: Numbers, buffer: _Buffer | None = None, idle: list[_Buffer] | None = None) -> None:
        self._numbers = numbers
        self._buffer = buffer
        self._idle = idle

    def wait(self) -> Numbers:
        """What it brings, which belongs to the caller. It waits for the device at most once."""
        if self._buffer is not None and self._idle is not None:
            self._buffer.done.wait()
            self._numbers = self._numbers.copy()
            self._idle.append(self._buffer)
            self._buffer = None
        return self._numbers


class Staging:
    """Brings host arrays to one device, and results back. On a CPU nothing is copied.

    Sending does not wait: where every buffer is still being copied from, another one is made. So there are as many as
    were ever sent between two waits for the device, and a step has few sends.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._lane = lane_to(device)
        # The one that was sent longest ago first.
        self._sent: deque[_Buffer] = deque()
        self._idle: list[_Buffer] = []

    @property
    def asynchronous(self) -> bool:
        """Whether the device works while the host goes on."""
        return self._lane is not None

    @property
    def buffers(self) -> int:
        """How many there are to send from."""
        return len(self._sent)

    def send(self, arrays: Sequence[Numbers], into: torch.Tensor | None = None) -> list[torch.Tensor]:
        """The arrays on the device, by one copy that is not waited for; with `into` uint8, as views of that."""
        if self._lane is None and into is None:
            return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        starts, size = [], 0
        for array in arrays:
            starts.append(size)
            size += -(-array.nbytes // _ALIGNED) * _ALIGNED
        buffer = None if self._lane is None else self._next(self._lane)
        host = torch.empty(size, dtype=torch.uint8) if buffer is None else buffer.room(size)
        memory = host.numpy()
        for start, array in zip(starts, arrays, strict=True):
            memory[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if into is None:
            into = torch.empty(size, dtype=torch.uint8, device=self._device)
        target = into[:size]
        if self._lane is None or buffer is None:
            target.copy_(host)
        else:
            self._lane.copy(target, host)
            buffer.done.set()
        return [
            target[start : start + array.nbytes].view(_TYPES[array.dtype]).view(array.shape)
            for start, array in zip(starts, arrays, strict=True)
        ]

    def start_fetch(self, tensor: torch.Tensor) -> Fetch:
        """Starts to copy the tensor to the host. What is launched later may overwrite it."""
        if self._lane is None:
            return Fetch(np.asarray(tensor.numpy()))
        flat = tensor.contiguous()
        # One that was copied to is idle once its numbers were taken, not as soon as they are there.
        buffer = self._idle.pop() if self._idle else _Buffer(self._lane)
        host = buffer.room(flat.numel() * flat.element_size()).view(flat.dtype).view(flat.shape)
        self._lane.copy(host, flat)
        buffer.done.set()
        return Fetch(host.numpy(), buffer, self._idle)

    def _next(self, lane: Lane) -> _Buffer:
        """The buffer that was sent longest ago, or another one where the device may still be copying from that."""
        buffer = self._sent.popleft() if self._sent and self._sent[0].done.reached() else _Buffer(lane)
        self._sent.append(buffer)
        return buffer


_TYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.bool_): torch.bool,
}


class Parcel:
    """Host arrays that are sent together once all are known.

    Who plans a part of the step adds its arrays, and asks for the tensors when that part runs.
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._arrays: list[Numbers] = []
        self._tensors: list[torch.Tensor] = []

    def add(self, arrays: Sequence[Numbers]) -> Callable[[], list[torch.Tensor]]:
        """What gives the arrays on the device, after `send`."""
        first, last = len(self._arrays), len(self._arrays) + len(arrays)
        self._arrays += arrays
        return lambda: self._tensors[first:last]

    def send(self) -> None:
        """Starts the copy of all arrays. It is called once, also where there are none."""
        if self._arrays:
            self._tensors = self._staging.send(self._arrays)


def brought_back(staging: Staging, tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    """Starts one copy of all tensors to the host. What it returns waits for that, and gives them as they were."""
    if not tensors:
        return list
    # The widest first, so that each lies where its type can be read.
    order = sorted(range(len(tensors)), key=lambda index: -tensors[index].element_size())
    pieces = [tensors[index].contiguous().flatten().view(torch.uint8) for index in order]
    fetch = staging.start_fetch(torch.cat(pieces))
    sizes = [len(piece) for piece in pieces]
    kinds = [(tensors[index].dtype, tensors[index].shape) for index in order]

    def waited() -> list[torch.Tensor]:
        found = torch.split(torch.from_numpy(fetch.wait()), sizes)
        by_index = {
            index: piece.view(dtype).view(shape)
            for index, piece, (dtype, shape) in zip(order, found, kinds, strict=True)
        }
        return [by_index[index] for index in range(len(order))]

    return waited
