"""How long a part of a step takes, where it runs."""

from __future__ import annotations

import time
from typing import Any

import torch

# torch does not annotate it.
_event: Any = torch.cuda.Event


class Stopwatch:
    """Runs from when it is made. On a GPU it measures the device's own time, which the host does not wait for."""

    def __init__(self, device: str) -> None:
        self._start: Any = None
        if device.startswith("cuda"):
            self._start = _event(enable_timing=True)
            self._start.record()
        else:
            self._since = time.perf_counter()

    def seconds(self) -> float:
        """Since it was made. On a GPU it waits until the device has come to here."""
        if self._start is None:
            return time.perf_counter() - self._since
        end = _event(enable_timing=True)
        end.record()
        end.synchronize()
        return float(self._start.elapsed_time(end)) / 1e3
