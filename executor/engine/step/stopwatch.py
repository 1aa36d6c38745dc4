"""How long a part of a step takes, where it runs."""

from __future__ import annotations

import time
from typing import Any

import torch

# torch does not annotate it.
_event: Any = torch.cuda.Event


class Stopwatch:
    """Runs from when it is made until it is stopped; on a GPU on the device's own clock, for which nobody waits."""

    def __init__(self, device: str) -> None:
        self._on_device = device.startswith("cuda")
        self._start = self._now()
        self._end = self._start

    def stop(self) -> None:
        """Ends what it measures."""
        self._end = self._now()

    def seconds(self) -> float:
        """What it has measured. On a GPU, asked once the device has come to where it was stopped; else it waits."""
        if not self._on_device:
            return float(self._end - self._start)
        if not self._end.query():
            self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1e3

    def _now(self) -> Any:
        if not self._on_device:
            return time.perf_counter()
        event = _event(enable_timing=True)
        event.record()
        return event
