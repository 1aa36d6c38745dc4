"""A stand-in for captured graphs, on any device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass
class Replayed:
    """A graph that does its work again, into the same result."""

    work: Callable[[], torch.Tensor]
    result: torch.Tensor
    bytes: int = 0

    def replay(self) -> None:
        self.result.copy_(self.work())


def record(work: Callable[[], torch.Tensor]) -> tuple[Replayed, torch.Tensor]:
    result = work().clone()
    return Replayed(work, result), result
