"""How a model's steps are laid out and run: in torch, by code compiled for this CPU, or by the attention kernels.

A deterministic engine gives a sample the same bits in any batch on a GPU. cuBLAS chooses its kernels by the shapes, and
torch how it splits its sums, so every forward has the same shapes: as many rows as the batch may have sequences, in
steps of 128, 64 rows in products with the head, and tiles of one size in the kernels that draw from hidden states.
Attention takes contexts in parts of one size and joins them in one order, for prompts as for tokens that follow them,
so that a row's bits depend on its own context only, and no prefix is shared. cuBLAS is told to split no sum
(`sum_in_float32`). It remains to be trusted that its kernel of one shape sums every row alike, which it does not
promise, and that device and versions stay the same.

That has its price: up to 128 sequences a prompt is read at most 128 tokens at a time; modules are not compiled, since a
step in which a row may exit early runs them as they are; and models with experts are refused, since the shapes of their
products depend on how many tokens chose each expert. A `max_sequences` above 128 means another shape, so other bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch

from qpdsl.executor.engine.batch.grouped_batch import build
from qpdsl.executor.engine.batch.kernel_batch import DirectAssembler, GraphAssembler, KernelBatch, PackedStep, bucket
from qpdsl.executor.engine.batch.staging import Staging
from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.engine.memory.sequence import Chunk, are_draws
from qpdsl.executor.engine.model.heads import LogitHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step import sampler
from qpdsl.executor.engine.step.device_head import DeviceHead
from qpdsl.executor.engine.step.draws import Draw
from qpdsl.executor.engine.step.graphs import CudaRecorder, Recorder, StepGraphs
from qpdsl.executor.engine.step.readout import Readout
from qpdsl.executor.engine.step.routed_head import CompiledHead, RoutedHead
from qpdsl.executor.engine.step.sampler import DeviceSampler, KernelSampler, Sampler
from qpdsl.executor.engine.step.token_head import TokenHead
from qpdsl.executor.kernels import packed
from qpdsl.executor.kernels.data.shared_prefixes import launch_bytes
from qpdsl.executor.kernels.packed import Sizes
from qpdsl.executor.kernels.paged_attention import on_device
from qpdsl.executor.requests.request import SamplingParams

# Rows of every forward where bits must not depend on the batch: up to about so many, reading the weights is what takes
# the time on a GPU, so padding to them is nearly free.
FIXED_ROWS = 128
# Rows of every product with the head there.
_FIXED_HEAD_ROWS = 64
# A cascade must save so many times what its launches take.
_CASCADE_GAIN = 4
# Steps whose kernels are compiled ahead: sequences that decode, tokens of chunks, and of the longest chunk.
_MIXED = ((0, 16, 16), (0, 128, 128), (16, 128, 128))
# Numbers of draws with a kernel of their own.
_DRAWS = (1, 32, 64)


Hidden = Callable[[torch.Tensor], torch.Tensor]
# Told what takes long, of which so many of so many are done.
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """Hidden states [W, d] of the rows that are read. `readers`: their chunks, in order, and how many rows of each.

    `states`: by their number, the same [W, d] after some of the layers, before the last norm, where a request may leave
    there. All of them are overwritten by the next forward.
    """

    readers: list[tuple[Chunk, int]]
    hidden: torch.Tensor
    states: dict[int, torch.Tensor]

    @classmethod
    def unpadded(
        cls, readers: list[tuple[Chunk, int]], hidden: torch.Tensor, states: dict[int, torch.Tensor]
    ) -> ForwardOutput:
        """Where the rows that are read come first, and padding may follow."""
        count = sum(rows for _, rows in readers)
        return cls(readers, hidden[:count], {layer: state[:count] for layer, state in states.items()})


class StepBackend(Protocol):
    """Runs the steps of one model over one cache. `readout` reads the hidden states of a forward."""

    readout: Readout

    def forward(self, chunks: list[Chunk], exits: Sequence[int] = ()) -> ForwardOutput:
        """One forward over the chunks; the KV of their tokens is in the cache after it.

        `exits` are the numbers of layers after which rows are read too.
        """
        ...

    def close(self) -> None:
        """Gives back what it holds of the device's memory; no step may run after it."""
        ...

    def warm_up(self, sequences: int, tell: Tell) -> None:
        """Makes ready what steps of up to so many sequences need, so that none waits for it."""
        ...


class GroupedBackend:
    """Attention in torch over groups of sequences, on a CPU for which the model has no compiled kernels."""

    def __init__(self, model: PagedModel, cache: KVCache) -> None:
        self._model = model
        self._cache = cache
        staging = Staging(model.device)
        head = _compiled_head(model) or _device_head(model, staging, deterministic=True)
        self.readout = Readout(model, staging, sampler.sample, head=head)

    def forward(self, chunks: list[Chunk], exits: Sequence[int] = ()) -> ForwardOutput:
        model, cache = self._model, self._cache
        batch = build(chunks, model.layout, model.fold, cache.scratch, model.device, model.least_rows)
        return ForwardOutput(batch.readers, *model.forward(batch, cache, exits))

    def close(self) -> None:
        """See `StepBackend`."""
        self._cache.close()

    def warm_up(self, sequences: int, tell: Tell) -> None:
        """See `StepBackend`."""


def fixed_rows(max_sequences: int) -> int:
    """The rows of every deterministic forward: what `max_sequences` sequences need, in steps of `FIXED_ROWS`."""
    return -(-max_sequences // FIXED_ROWS) * FIXED_ROWS


# In KiB: so little that no sum is split for want of room to keep its parts (as in vLLM's batch-invariant mode).
_WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}


def sum_in_float32(*, whole: bool) -> None:
    """Has products of 16-bit numbers sum in float32, also where cuBLAS splits them by inputs (split-K).

    torch's default lets it add such parts as 16-bit numbers. `whole`: it splits no sum at all, so that the order in
    which a row is summed does not depend on what the device is given besides. Workspaces are made with the first
    product of a process, and stay as they are from then on.
    """
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = (False, not whole)
    matmul.allow_fp16_reduced_precision_reduction = (False, not whole)
    if whole:
        for name, value in _WORKSPACES.items():
            os.environ.setdefault(name, value)


class KernelBackend:
    """Steps through the attention kernels: on CUDA; on a CPU, for tests, by their interpreter or their torch twins.

    Nothing waits for the device but the results. With `rows`, every forward has so many rows, and attention gives bits
    that do not depend on the batch; None where speed goes first. `recorder` captures steps (see `GraphAssembler`); with
    None they run as they are, as do those in which a row may leave early.
    """

    def __init__(
        self, model: PagedModel, cache: KVCache, rows: int | None = None, recorder: Recorder | None = None
    ) -> None:
        self._model = model
        self._cache = cache
        self._rows = rows
        self._deterministic = rows is not None
        self.staging = Staging(model.device)
        # In tokens of one layer: a cascade adds its launches to each, and more sizes of steps.
        worth = _CASCADE_GAIN * launch_bytes(cache.rows.data.device)
        worth = worth * model.layout.page_size // model.layout.layer_bytes
        self._assembler = GraphAssembler(model.layout.page_size, cache.scratch, rows, worth)
        self.graphs: StepGraphs | None = None
        if recorder is not None:
            # Of the model and the cache, not of this object: a circle would keep the memory of the cache for longer.
            forward = partial(_captured, model, cache, self._deterministic)
            self.graphs = StepGraphs(forward, partial(_buffer, model.device), recorder)
        sample: Sampler = _device_sampler(self.staging) if on_device(cache.rows.data) else sampler.sample
        head = _device_head(model, self.staging, self._deterministic)
        self.readout = Readout(model, self.staging, sample, None if rows is None else _FIXED_HEAD_ROWS, head)

    def forward(self, chunks: list[Chunk], exits: Sequence[int] = (), fed: torch.Tensor | None = None) -> ForwardOutput:
        """See `StepBackend`. `fed` int64 [chunks]: on the device, the tokens of chunks of one each."""
        graphs = None if exits else self.graphs
        step: PackedStep | None
        # A token of a tree that comes alone has no straight row: it reads its path.
        if are_draws(chunks) or all(chunk.rows == chunk.straight == 1 and chunk.read_rows for chunk in chunks):
            step = self._assembler.decode(chunks)
        elif graphs is None or (step := self._assembler.rounded(chunks)) is None:
            return self._eager(self._assembler.mixed(chunks), exits)
        if fed is not None:
            step = replace(step, fed=fed)
        if graphs is None:
            return self._eager(step, exits)
        hidden = graphs.run(step.sizes, partial(self._fill, step))
        return ForwardOutput.unpadded(step.readers, hidden, {})

    def close(self) -> None:
        """See `StepBackend`."""
        if self.graphs is not None:
            self.graphs.close()
        self._cache.close()

    def warm_up(self, sequences: int, tell: Tell) -> None:
        """See `StepBackend`. Kernels are compiled at once for the commonest steps, then the decode steps captured."""
        if self._cache.states is not None:
            return
        counts = sorted({bucket(rows) for rows in range(1, sequences + 1)} if self._rows is None else {self._rows})
        decodes = [self._assembler.empty(count) for count in counts]
        mixed = [] if self._rows is not None else [self._assembler.empty(*sizes) for sizes in _MIXED]

        def run() -> None:
            for step in (*decodes, *mixed):
                hidden = self._eager(step, ()).hidden
            if isinstance(self._model.head, LogitHead):
                self._draw(hidden, sequences)

        if on_device(self._cache.rows.data):
            _compile(run, tell)
        if self.graphs is not None:
            # Smaller graphs find room in what the largest took.
            for done, step in enumerate(reversed(decodes)):
                tell("capturing steps", done, len(decodes))
                self.graphs.prepare(step.sizes, partial(self._fill, step))
            tell("capturing steps", len(decodes), len(decodes))

    def _draw(self, hidden: torch.Tensor, sequences: int) -> None:
        """Draws, and forgets, as many tokens as steps of up to so many sequences do."""
        for count in (count for count in _DRAWS if count <= max(sequences, _DRAWS[0])):
            rows = torch.zeros(count, hidden.shape[1], dtype=hidden.dtype, device=hidden.device)
            draws = [Draw(row, SamplingParams(1.0), row, 0) for row in range(count)]
            self.readout.start(rows, draws, None, []).wait()

    def _eager(self, step: PackedStep, exits: Sequence[int]) -> ForwardOutput:
        (numbers,) = self.staging.send([step.numbers])
        self._feed(step, numbers)
        batch = KernelBatch.of(numbers, step.sizes, self._deterministic)
        return ForwardOutput.unpadded(step.readers, *self._model.forward(batch, self._cache, exits))

    def _fill(self, step: PackedStep, inputs: torch.Tensor) -> None:
        self.staging.send([step.numbers], into=inputs.view(torch.uint8))
        self._feed(step, inputs)

    def _feed(self, step: PackedStep, numbers: torch.Tensor) -> None:
        if step.fed is not None:
            tokens = packed.tokens_of(numbers, step.sizes)[: len(step.fed)]
            # What is drawn from NaN may be no token, and would end the device's context before the host sees it.
            torch.clamp(step.fed, 0, self._model.vocabulary - 1, out=tokens)


def _captured(
    model: PagedModel, cache: KVCache, deterministic: bool, inputs: torch.Tensor, sizes: Sizes
) -> torch.Tensor:
    """The hidden states [W, d] of the step that lies in `inputs`."""
    return model.forward(KernelBatch.of(inputs, sizes, deterministic), cache)[0]


def _buffer(device: str, sizes: Sizes) -> torch.Tensor:
    """Where the numbers of such steps go: int32 [n]."""
    return torch.empty(sum(sizes.room), dtype=torch.int32, device=device)


class NativeBackend:
    """Layers compiled for this CPU. Their kernels read each sequence's pages in place, so nothing is gathered."""

    def __init__(self, model: PagedModel, cache: KVCache) -> None:
        """Raises ValueError where the kernels were compiled for another layout of the cache."""
        if cache.layout != model.layout:
            raise ValueError("the model's kernels were compiled for another layout of keys and values")
        self._model = model
        self._cache = cache
        self._assembler = DirectAssembler(model.layout.page_size, cache.scratch)
        staging = Staging(model.device)
        sample: Sampler = sampler.sample if model.sampler is None else KernelSampler(staging, model.sampler)
        self.readout = Readout(model, staging, sample, head=_compiled_head(model))

    def forward(self, chunks: list[Chunk], exits: Sequence[int] = ()) -> ForwardOutput:
        step, batch = self._batch(chunks)
        return ForwardOutput.unpadded(step.readers, *self._model.forward(batch, self._cache, exits))

    def first_layers(self, chunks: list[Chunk], depth: int, hidden_of: Hidden | None = None) -> ForwardOutput:
        """As `forward`, with the first `depth` layers alone; of the KV, only theirs is in the cache after it.

        `hidden_of` gives hidden states [N, d] of their residual [N, d]; by default it is the last norm.
        """
        step, batch = self._batch(chunks)
        residual, hidden = self._model.run_layers(batch, self._cache, None, 0, depth)
        read, rows = hidden if hidden_of is None else residual, batch.read_rows
        read = read if rows is None else read.index_select(0, rows)
        return ForwardOutput.unpadded(step.readers, read if hidden_of is None else hidden_of(read), {})

    def run_layers(
        self, chunks: list[Chunk], residual: torch.Tensor | None, first: int, depth: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs the layers from `first` to before `depth` alone, on the `residual` before them (None: the embeddings).

        Returns the residual after them, and the same with the last norm: float32 [T, d] for all rows of the chunks, in
        the order of `in_rows`. Only where the model `runs_in_part`.
        """
        return self._model.run_layers(self._batch(chunks)[1], self._cache, residual, first, depth)

    def close(self) -> None:
        """See `StepBackend`."""
        self._cache.close()

    def warm_up(self, sequences: int, tell: Tell) -> None:
        """See `StepBackend`."""

    def _batch(self, chunks: list[Chunk]) -> tuple[PackedStep, KernelBatch]:
        step = self._assembler.step(chunks, self._model.least_rows)
        batch = KernelBatch.of(torch.from_numpy(step.numbers), step.sizes, segments=step.segments)
        if batch.read_rows is None and (read := sum(rows for _, rows in step.readers)) < len(batch.tokens):
            # None is what reads all rows.
            batch = replace(batch, read_rows=torch.arange(read))
        return step, batch


def backend_of(model: PagedModel, cache: KVCache, rows: int | None, graphs: bool) -> StepBackend:
    """The backend that suits a model. `rows`: see `KernelBackend`; with `graphs`, its steps may be captured."""
    if model.native:
        return NativeBackend(model, cache)
    return kernel_backend(model, cache, rows, graphs) if model.kernels else GroupedBackend(model, cache)


def kernel_backend(model: PagedModel, cache: KVCache, rows: int | None, graphs: bool) -> KernelBackend:
    """The kernels' backend on the model's own device. Graphs are captured on CUDA alone."""
    recorder = CudaRecorder() if graphs and cache.rows.data.is_cuda else None
    return KernelBackend(model, cache, rows, recorder)


def _compile(run: Callable[[], None], tell: Tell) -> None:
    """Compiles what `run` launches and nobody compiled before, on all processors at once."""
    # A machine without a GPU need not have Triton.
    from qpdsl.executor.kernels.triton.common import queued

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        with queued(pool) as waiting:
            run()
        for done, _ in enumerate(as_completed(waiting)):
            tell("compiling kernels", done, len(waiting))
    if waiting:
        tell("compiling kernels", len(waiting), len(waiting))


def _compiled_head(model: PagedModel) -> TokenHead | None:
    head = model.panel_head
    return None if head is None else RoutedHead(CompiledHead(head))


def _device_head(model: PagedModel, staging: Staging, deterministic: bool) -> TokenHead | None:
    """None where the weights are no matrix of floats, or where torch would round its logits to 16 bits."""
    weights = model.head.weights if isinstance(model.head, LogitHead) else None
    if weights is None or not (on_device(weights.weight) or model.dtype is torch.float32):
        return None
    return DeviceHead(weights, staging, deterministic)


def _device_sampler(staging: Staging) -> DeviceSampler:
    # A machine without a GPU need not have Triton.
    from qpdsl.executor.kernels.triton import sample as triton_sample

    return DeviceSampler(staging, triton_sample.sample)
