"""Steps of a model whose layers are compiled for this CPU."""

from __future__ import annotations

import torch

from qpdsl.executor.engine import sampler
from qpdsl.executor.engine.assembly import PlainAssembler
from qpdsl.executor.engine.backend import Forwarded
from qpdsl.executor.engine.draw import Drawer, Sampler
from qpdsl.executor.engine.kernel_batch import KernelBatch
from qpdsl.executor.engine.kernel_sampler import KernelSampler
from qpdsl.executor.engine.kv import KVCache
from qpdsl.executor.engine.model import PagedModel
from qpdsl.executor.engine.scheduler import Chunk
from qpdsl.executor.engine.staging import Staging


class NativeBackend:
    """Kernels read each sequence's pages in place; nothing is gathered, and only the least rows are padded."""

    def __init__(self, model: PagedModel, cache: KVCache) -> None:
        """Raises ValueError where the cache does not lie as the kernels were compiled for."""
        if cache.layout != model.layout:
            raise ValueError("the model's kernels were compiled for another layout of keys and values")
        self._model = model
        self._cache = cache
        self._assembler = PlainAssembler(model.layout.page_size, cache.scratch)
        staging = Staging(model.device)
        sample: Sampler = sampler.sample if model.sampler is None else KernelSampler(staging, model.sampler)
        self.drawer = Drawer(model, staging, sample)

    def forward(self, chunks: list[Chunk], middle: bool) -> Forwarded:
        step = self._assembler.step(chunks, self._model.least_rows)
        batch = KernelBatch.of(torch.from_numpy(step.numbers), step.sizes)
        hidden, early = self._model.forward(batch, self._cache, middle=middle)
        # Rows that are not picked are the first ones, before any padding.
        return Forwarded.first(step.readers, hidden, early)
