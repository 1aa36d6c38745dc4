"""A pretend device without memory to spare: by default an engine takes all that is free, as on CUDA."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from qpdsl.executor.engine.memory import budget, kv_cache


@dataclass
class SmallCard:
    """`total` bytes, of which the arenas that are alive hold some. Those made so far are counted."""

    total: int
    made: int = 0
    _alive: list[weakref.ref[np.ndarray[Any, np.dtype[np.uint8]]]] = field(default_factory=list)

    @property
    def free(self) -> int:
        """Bytes that no arena holds."""
        gc.collect()
        return self.total - sum(buffer.nbytes for ref in self._alive if (buffer := ref()) is not None)

    def zeros(self, size: int, device: str) -> torch.Tensor:
        if size > self.free:
            raise torch.OutOfMemoryError(f"out of memory: {size:,} bytes are wanted, {self.free:,} are free")
        memory = np.zeros(size, dtype=np.uint8)
        self._alive.append(weakref.ref(memory))
        self.made += 1
        return torch.from_numpy(memory)

    def kv_bytes(self, amount: int | str | None, device: str, largest_step: Callable[[], None], beside: int = 0) -> int:
        """As `budget.kv_bytes` on CUDA, where steps take nothing."""
        return self.free - self.total // 32 if amount is None else budget.parse(amount)


@contextmanager
def small_card(total: int) -> Iterator[SmallCard]:
    """Arenas that are made in the block lie on it."""
    card = SmallCard(total)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_cache, "_zeros", card.zeros)
        patch.setattr(budget, "kv_bytes", card.kv_bytes)
        yield card
