"""The kernels of one model's decoder layers on a CPU, compiled for its shapes, as functions of tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

import torch

from qpdsl.executor.kernels.llvm_attention import emit_attend
from qpdsl.executor.kernels.llvm_cache import HeadShape
from qpdsl.executor.kernels.llvm_library import Library, vector_width
from qpdsl.executor.kernels.llvm_pointwise import Activation, emit_gate, emit_norm
from qpdsl.executor.kernels.llvm_store import emit_store
from qpdsl.executor.kernels.metadata import PagedBatch

# Fewer queries than this are not worth waking other threads for.
_ROWS_A_THREAD = 32


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What the kernels are compiled for.

    `hidden`, `intermediate`: the widths of the layers and of the MLP between gate and down. `epsilon`: of the RMS
    norms, `head_epsilon`: of those over single heads, None without. `scoring`: scale and window of each layer.
    """

    heads: HeadShape
    hidden: int
    intermediate: int
    activation: Activation
    epsilon: float
    head_epsilon: float | None
    scoring: tuple[tuple[float, int | None], ...]


class LayerKernels:
    """Kernels over float32. Raises LookupError where the machine or the shapes are none they can be compiled for."""

    def __init__(self, shape: LayerShape) -> None:
        heads, width = shape.heads, _width(shape)
        self._shape = shape
        self._block = heads.block(width)
        if heads.page_size % (width // self._block):
            raise LookupError("page size")
        self._library = library = _library(shape, width)
        self._norm, self._gate, self._store = library["norm"], library["gate"], library["store"]
        self._attends = [library[_attend_name(kind)] for kind in shape.scoring]
        self._scratch: list[torch.Tensor] = []
        # Threads are started as they are needed.
        self._threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="attention")

    def norm(self, hidden: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """RMS norm of `hidden` [T, d] into `out`."""
        self._norm(hidden.data_ptr(), weight.data_ptr(), out.data_ptr(), hidden.shape[0])

    def gate(self, widened: torch.Tensor, out: torch.Tensor) -> None:
        """act(gate) · up of `widened` [T, 2I], gate first, into `out` [T, I]."""
        self._gate(widened.data_ptr(), out.data_ptr(), widened.shape[0])

    def store(
        self,
        joined: torch.Tensor,
        turns: torch.Tensor,
        positions: torch.Tensor,
        batch: PagedBatch,
        rows: torch.Tensor,
        weights: torch.Tensor | None,
        layer: int,
    ) -> None:
        """Turns queries and keys of `joined` [T, joined] in place; keys and values go to their slots in `rows`.

        `turns` complex64 [P, dim / 2] by position; `weights` [heads, dim] of the norms over single heads.
        """
        self._store(
            joined.data_ptr(),
            turns.data_ptr(),
            positions.data_ptr(),
            batch.slots.data_ptr(),
            rows.data_ptr(),
            0 if weights is None else weights.data_ptr(),
            joined.shape[0],
            layer,
        )

    def attend(
        self, joined: torch.Tensor, batch: PagedBatch, rows: torch.Tensor, out: torch.Tensor, layer: int
    ) -> None:
        """Attention of the queries of `joined` after `store`, into `out` [T, queries]; padding rows are left alone."""
        table = batch.pages.shape[1]
        function = self._attends[layer]
        count = joined.shape[0]
        workers = min(torch.get_num_threads(), count // _ROWS_A_THREAD)
        scratch = self._rooms(max(1, workers), table * self._shape.heads.page_size * self._block)

        def run(worker: int, first: int, last: int) -> None:
            function(
                joined.data_ptr(),
                rows.data_ptr(),
                batch.pages.data_ptr(),
                batch.context.data_ptr(),
                batch.query_start.data_ptr(),
                out.data_ptr(),
                scratch[worker].data_ptr(),
                table,
                layer,
                batch.sequences,
                first,
                last,
            )

        if workers <= 1:
            run(0, 0, count)
            return
        bounds = [count * worker // workers for worker in range(workers + 1)]
        _wait(self._threads.map(run, range(workers), bounds[:-1], bounds[1:]))

    def _rooms(self, count: int, size: int) -> list[torch.Tensor]:
        if len(self._scratch) < count or self._scratch[0].numel() < size:
            self._scratch = [torch.empty(1 << (size - 1).bit_length()) for _ in range(count)]
        return self._scratch


@cache
def _library(shape: LayerShape, width: int) -> Library:
    emitters: dict[str, Callable[..., None]] = {
        "norm": partial(emit_norm, size=shape.hidden, width=width, epsilon=shape.epsilon),
        "gate": partial(emit_gate, size=shape.intermediate, width=width, activation=shape.activation),
        "store": partial(emit_store, shape=shape.heads, width=width, epsilon=shape.head_epsilon),
    }
    for kind in shape.scoring:
        scale, window = kind
        attend = partial(emit_attend, shape=shape.heads, width=width, scaling=scale, window=window)
        emitters[_attend_name(kind)] = attend
    return Library(emitters)


def _attend_name(kind: tuple[float, int | None]) -> str:
    return f"attend {kind}"


def _wait(results: Iterable[None]) -> None:
    for _ in results:
        pass


def _width(shape: LayerShape) -> int:
    """The widest vectors that divide every row: narrow models may have to do with less than the machine has."""
    width = vector_width()
    while width and any(size % width for size in (shape.heads.dim, shape.hidden, shape.intermediate)):
        width //= 2
    if width < 4:
        raise LookupError("no vectors")
    return width
