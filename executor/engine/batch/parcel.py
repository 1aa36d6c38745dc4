"""What several parts of a step bring to the device, by one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from qpdsl.executor.engine.batch.staging import Numbers, Staging


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
