"""The kernels of a decoder layer as functions of tensors, each compiled when it is first called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.layer_constants import Activation
from qpdsl.executor.kernels.data.paged_batch import PagedBatch
from qpdsl.executor.kernels.llvm.attention import NO_WINDOW, emit_attend, scratch_size
from qpdsl.executor.kernels.llvm.cache import HeadShape
from qpdsl.executor.kernels.llvm.compile import Function, Library, vector_width
from qpdsl.executor.kernels.llvm.forward import HeadNorm, dividing, emit_gate, emit_norm, emit_store
from tests.support.executor.paged_case import make_batch, make_rows, page_tables

CONTEXTS = [1, 16, 17, 40, 0, 90, 23]
QUERIES = [1, 1, 1, 1, 0, 60, 5]
# Numbers between two rows of a joined projection, which nothing may change.
_GAP = 3
# Compiled kernels take megabytes, and one test uses a few.
_KEPT = 8


def case(heads: HeadShape) -> tuple[KVRows, PagedBatch, torch.Tensor]:
    """Rows full of keys and values, a batch over them, and the joined projections of its queries."""
    generator = torch.Generator().manual_seed(5)
    tables, count = page_tables(CONTEXTS, heads.page_size, generator, [(1, 3, 5)])
    rows = make_rows(count, heads.page_size, heads.kv_heads, heads.dim, heads.dtype, heads.kind, generator)
    batch = make_batch(CONTEXTS, QUERIES, tables, heads.page_size, 4)
    return rows, batch, torch.randn(sum(QUERIES), heads.joined + _GAP, generator=generator)[:, : heads.joined]


def split(joined: torch.Tensor, heads: HeadShape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [T, H, D] as the twin takes them, keys and values [T, KV, D]."""
    count = len(joined)
    queries = joined[:, : heads.queries].reshape(count, heads.fold, heads.kv_heads, heads.dim)
    rest = joined[:, heads.queries :].reshape(count, 2, heads.kv_heads, heads.dim)
    return queries.transpose(1, 2).flatten(1, 2), rest[:, 0], rest[:, 1]


def copied(rows: KVRows) -> KVRows:
    if rows.kind == "plain":
        return KVRows.plain(rows.data.clone())
    return KVRows.quantized(rows.data.clone(), rows.kind, rows.page_size, rows.kv_heads, rows.dim)


@lru_cache(maxsize=_KEPT)
def _kernel(emit: Callable[..., None], **shape: object) -> Function:
    library = Library({"kernel": partial(emit, **shape)})
    function = library["kernel"]
    # A function may be called as long as its library lives.
    function.library = library  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True)
class LayerKernels:
    """Of heads of one shape. `width`: of a vector, the machine's by default; it must divide the width of a head."""

    heads: HeadShape
    width: int = 0

    def attend(
        self,
        joined: torch.Tensor,
        batch: PagedBatch,
        rows: KVRows,
        layer: int,
        window: int | None = None,
        sinks: torch.Tensor | None = None,
        threads: int = 1,
    ) -> torch.Tensor:
        """[T, fold · KV · D], computed in the shares of so many threads, one after the other; sinks [fold, KV]."""
        heads, width, count = self.heads, self._width, len(joined)
        table = batch.pages.shape[1]
        out = torch.zeros(count, heads.queries)
        scratch = torch.empty(scratch_size(heads, width, table))
        scaling = torch.tensor([heads.dim**-0.5])
        for thread in range(threads):
            self._kernel(emit_attend, sinks=sinks is not None)(
                joined.data_ptr(),
                joined.stride(0),
                rows.data.data_ptr(),
                batch.pages.data_ptr(),
                batch.context.data_ptr(),
                batch.query_start.data_ptr(),
                out.data_ptr(),
                scratch.data_ptr(),
                table,
                layer,
                batch.sequences,
                thread,
                threads,
                scaling.data_ptr(),
                window or NO_WINDOW,
                0 if sinks is None else sinks.data_ptr(),
            )
        return out

    def store(
        self,
        joined: torch.Tensor,
        rotations: torch.Tensor,
        positions: torch.Tensor,
        batch: PagedBatch,
        rows: KVRows,
        layer: int,
        norm: HeadNorm | None = None,
        weights: torch.Tensor | None = None,
    ) -> None:
        """Changes `joined` and `rows`; rotations float32 [P, D / 2, 2], weights as those of `HeadNorms`."""
        self._kernel(emit_store, norm=norm)(
            joined.data_ptr(),
            joined.stride(0),
            rotations.data_ptr(),
            positions.data_ptr(),
            batch.slots.data_ptr(),
            rows.data.data_ptr(),
            0 if weights is None else weights.data_ptr(),
            len(joined),
            layer,
        )

    @property
    def _width(self) -> int:
        return self.width or dividing(vector_width(), self.heads.dim)

    def _kernel(self, emit: Callable[..., None], **shape: object) -> Function:
        return _kernel(emit, shape=self.heads, width=self._width, **shape)


def norm(
    hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, onto: torch.Tensor | None = None, factor: float = 1.0
) -> torch.Tensor:
    """The RMS norm of each row, times `factor` on top of `onto` where there is that."""
    size = hidden.shape[1]
    out = torch.empty_like(hidden) if onto is None else onto.clone()
    scale = torch.tensor([factor])
    arguments = (hidden.data_ptr(), weight.data_ptr(), out.data_ptr(), len(hidden), scale.data_ptr())
    width = dividing(vector_width(), size)
    _kernel(emit_norm, size=size, width=width, epsilon=epsilon, add=onto is not None)(*arguments)
    return out


def gate(gates: torch.Tensor, ups: torch.Tensor, activation: Activation) -> torch.Tensor:
    """act(gates) · ups, written between columns that must stay as they are."""
    count, size = gates.shape
    widened, out = torch.cat((gates, ups), dim=1), torch.full((count, size + 5), 7.0)
    arguments = (widened.data_ptr(), out.data_ptr(), out.stride(0), count)
    _kernel(emit_gate, size=size, width=dividing(vector_width(), size), activation=activation)(*arguments)
    assert out[:, size:].eq(7).all()
    return out[:, :size]
