"""A device that does nothing before somebody waits for it, and notices a host that does not wait for it.

It computes at once, as its memory is the host's. But what is copied back arrives only when it is waited for, and what
is copied from must stay as it is until then. Whatever nobody may read is filled with poison.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from qpdsl.executor.engine.batch import staging
from qpdsl.executor.engine.batch.staging import StreamMark

# Floats of these bytes are no numbers, and integers none that occur.
_POISON = 0xFF


@dataclass(eq=False, slots=True)
class _Copy:
    """A copy that was started: `source` as it was then. `host` is the side that lies in host memory."""

    host: torch.Tensor
    source: torch.Tensor
    brings_back: bool


@dataclass(eq=False)
class FakeLane:
    """A `Lane` to it. `waits` counts those that had something to wait for; `copies` those that were started."""

    waits: int = 0
    copies: int = 0
    _started: list[_Copy] = field(default_factory=list)
    _done: int = 0
    _host: list[torch.Tensor] = field(default_factory=list)

    @property
    def under_way(self) -> int:
        """Copies that are not done."""
        return len(self._started) - self._done

    def host_memory(self, size: int) -> torch.Tensor:
        """See `Lane`."""
        self._host.append(torch.full((size,), _POISON, dtype=torch.uint8))
        return self._host[-1]

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Lane`. What is sent is there at once, as what is computed with it is."""
        self.copies += 1
        if self._is_host(target):
            self._started.append(_Copy(target, source.clone(), True))
            _poison(target)
            return
        assert self._is_host(source), "a device copies by itself from such memory alone"
        target.copy_(source)
        self._started.append(_Copy(source, source.clone(), False))

    def mark(self) -> StreamMark:
        """See `Lane`."""
        return _FakeMark(self)

    def finish(self, until: int) -> None:
        """Does the first so many of all copies."""
        for copy in self._started[self._done : until]:
            if copy.brings_back:
                copy.host.copy_(copy.source)
            else:
                assert _bits(copy.host) == _bits(copy.source), "host memory was written while it was copied from"
                _poison(copy.host)
        self._done = max(self._done, until)

    @property
    def started(self) -> int:
        return len(self._started)

    @property
    def done(self) -> int:
        return self._done

    def _is_host(self, tensor: torch.Tensor) -> bool:
        storage = tensor.untyped_storage().data_ptr()
        return any(memory.untyped_storage().data_ptr() == storage for memory in self._host)


class _FakeMark:
    def __init__(self, lane: FakeLane) -> None:
        self._lane = lane
        self._at = 0

    def set(self) -> None:
        self._at = self._lane.started

    def reached(self) -> bool:
        return self._at <= self._lane.done

    def wait(self) -> None:
        if not self.reached():
            self._lane.waits += 1
            self._lane.finish(self._at)


@contextmanager
def fake_device() -> Iterator[FakeLane]:
    """Has models that are made ready in the block work on such a device, with poison in memory that nobody wrote."""
    lane = FakeLane()
    was, fills = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "lane_to", lambda device: lane)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = True
        try:
            yield lane
        finally:
            torch.use_deterministic_algorithms(was)
            torch.utils.deterministic.fill_uninitialized_memory = fills


def _poison(memory: torch.Tensor) -> None:
    memory.view(torch.uint8).fill_(_POISON)


def _bits(memory: torch.Tensor) -> bytes:
    return bytes(memory.contiguous().view(torch.uint8).numpy())
