"""How one model's steps are laid out and run: what differs between attention in torch and attention by kernels.

MERGED: Steps through the attention kernels: on CUDA; on a CPU, for tests, through their interpreter or their torch twins.

MERGED: Steps of a model whose layers are compiled for this CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from qpdsl.executor.engine.batch.grouped import build, wanted_rows
from qpdsl.executor.engine.batch.kernel import Assembled, Assembler, KernelBatch, PlainAssembler
from qpdsl.executor.engine.batch.staging import Staging
from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.engine.memory.sequence import Chunk
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step import sampler
from qpdsl.executor.engine.step.graphs import CudaRecorder, DecodeGraphs, Recorder
from qpdsl.executor.engine.step.readout import Drawer, Sampler
from qpdsl.executor.engine.step.sampler import KernelSampler
from qpdsl.executor.kernels.packed import Sizes
from qpdsl.executor.kernels.paged_attention import on_device


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


# Rows of every forward where bits must not depend on the batch: up to about so many, reading the weights is what takes
# the time on a GPU, so padding to them is nearly free.
FIXED_ROWS = 128
# Rows of every product with the head there.
_FIXED_READS = 64


def fixed_rows(max_sequences: int) -> int:
    """The rows of every deterministic forward: what `max_sequences` sequences need, in steps of `FIXED_ROWS`."""
    return -(-max_sequences // FIXED_ROWS) * FIXED_ROWS


class KernelBackend:
    """Nothing here waits for the device but what is drawn or read.

    `rows`: every forward has so many, and all attention goes through the one kernel whose bits depend on nothing else;
    None where speed goes first. `recorder` captures decode steps; None runs them as they are.
    """

    def __init__(
        self, model: PagedModel, cache: KVCache, rows: int | None = None, recorder: Recorder | None = None
    ) -> None:
        self._model = model
        self._cache = cache
        self._deterministic = rows is not None
        self._staging = Staging(model.device)
        self._assembler = Assembler(model.layout.page_size, cache.scratch, rows)
        self.graphs = None if recorder is None else DecodeGraphs(self._captured, self._allocate, recorder)
        sample: Sampler = _kernel_sampler(self._staging) if on_device(cache.rows.data) else sampler.sample
        self.drawer = Drawer(model, self._staging, sample, None if rows is None else _FIXED_READS)

    def forward(self, chunks: list[Chunk], middle: bool) -> Forwarded:
        if not all(chunk.count == 1 and wanted_rows(chunk) for chunk in chunks):
            step = self._assembler.mixed(chunks)
            return self._eager(step, middle)
        step = self._assembler.decode(chunks)
        if middle or self.graphs is None:
            return self._eager(step, middle)
        hidden = self.graphs.run(step.sizes, lambda inputs: self._fill(step, inputs))
        return Forwarded(step.readers, hidden[: len(chunks)], None)

    def _eager(self, step: Assembled, middle: bool) -> Forwarded:
        (numbers,) = self._staging.send([step.numbers])
        batch = KernelBatch.of(numbers, step.sizes, self._deterministic)
        hidden, early = self._model.forward(batch, self._cache, middle=middle)
        # Rows that are not picked are the first ones, before any padding.
        return Forwarded.first(step.readers, hidden, early)

    def _fill(self, step: Assembled, inputs: torch.Tensor) -> None:
        self._staging.send([step.numbers], into=inputs.view(torch.uint8))

    def _captured(self, inputs: torch.Tensor, sizes: Sizes) -> torch.Tensor:
        return self._model.forward(KernelBatch.of(inputs, sizes, self._deterministic), self._cache)[0]

    def _allocate(self, sizes: Sizes) -> torch.Tensor:
        return torch.zeros(sum(sizes.room), dtype=torch.int32, device=self._model.device)


def _kernel_sampler(staging: Staging) -> KernelSampler:
    # Triton is there where a device is.
    from qpdsl.executor.kernels.triton import sample as triton_sample

    return KernelSampler(staging, triton_sample.sample)


def kernel_backend(model: PagedModel, cache: KVCache, rows: int | None, graphs: bool) -> KernelBackend:
    """The backend of a model on its own device."""
    recorder = CudaRecorder() if graphs and cache.rows.data.is_cuda else None
    return KernelBackend(model, cache, rows, recorder)


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
