"""How one model's steps are laid out and run: what differs between attention in torch and attention by kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from qpdsl.executor.engine import sampler
from qpdsl.executor.engine.batch import build
from qpdsl.executor.engine.draw import Drawer
from qpdsl.executor.engine.kv import KVCache
from qpdsl.executor.engine.model import PagedModel
from qpdsl.executor.engine.scheduler import Chunk
from qpdsl.executor.engine.staging import Staging


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What a forward leaves: hidden states [W, d] of the wanted rows in the order of `readers` (chunk, rows of it).

    `middle` [W, d]: the same after the middle layer, where it was asked for. Good until the next forward.
    """

    readers: list[tuple[Chunk, int]]
    hidden: torch.Tensor
    middle: torch.Tensor | None

    @classmethod
    def first(cls, readers: list[tuple[Chunk, int]], hidden: torch.Tensor, middle: torch.Tensor | None) -> Forwarded:
        """Where the wanted rows are the first ones of `hidden` and `middle`, and padding may follow."""
        count = sum(rows for _, rows in readers)
        return cls(readers, hidden[:count], None if middle is None else middle[:count])


class Backend(Protocol):
    """Runs the steps of one model over one cache. `drawer` reads what a forward leaves."""

    drawer: Drawer

    def forward(self, chunks: list[Chunk], middle: bool) -> Forwarded:
        """One forward over the chunks; the KV of their tokens is in the cache after it."""
        ...


class GroupedBackend:
    """Attention in torch over groups of like sequences, on a CPU that nothing is compiled for."""

    def __init__(self, model: PagedModel, cache: KVCache) -> None:
        self._model = model
        self._cache = cache
        self.drawer = Drawer(model, Staging(model.device), sampler.sample)

    def forward(self, chunks: list[Chunk], middle: bool) -> Forwarded:
        model, cache = self._model, self._cache
        batch = build(chunks, model.layout, model.fold, cache.scratch, model.device, model.least_rows)
        return Forwarded(batch.readers, *model.forward(batch, cache, middle=middle))
