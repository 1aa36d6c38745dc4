"""What several parts of a step bring to the device by one copy, and what they bring back by another."""

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
