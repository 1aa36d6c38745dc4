"""Paged attention of one layer as a function of tensors, for models that keep transformers' modules."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from llvmlite import ir

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import Heads, PagedBatch, Scoring, next_power_of_two
from qpdsl.executor.kernels.llvm.attention import NO_WINDOW, emit_attend, scratch_size
from qpdsl.executor.kernels.llvm.cache import KEY, VALUE, Cache, CacheShape, HeadShape
from qpdsl.executor.kernels.llvm.compile import TEAM, Function, Library, vector_width
from qpdsl.executor.kernels.llvm.forward import dividing
from qpdsl.executor.kernels.llvm.kernel_code import I64, KernelCode
from qpdsl.executor.kernels.llvm.scores import AlibiKind

if TYPE_CHECKING:
    from qpdsl.executor.kernels.llvm.kernel_code import Value

# Products of queries and keys that a thread computes at least: fewer are not worth waking one.
_WORK = 1 << 20


class LayerAttention:
    """Stores keys and values, and attends: float32 queries over rows that hold floats, or eight or four bits.

    Raises LookupError where the kernels cannot be compiled for the machine or the shapes.
    """

    def __init__(self, shape: HeadShape) -> None:
        self._shape = shape
        self._width = width = dividing(dividing(vector_width(), shape.dim), shape.value_dim)
        if shape.page_size % (width // shape.block(width)):
            raise LookupError("page size")
        self._put = _put_library(shape.cache, width)["put"]
        # With and without sinks, a soft cap, trees, chunks and a bias; compiled when a layer first needs it.
        self._attends: dict[tuple[bool, float | None, bool, bool, AlibiKind], Function] = {}
        self._scratch = torch.empty(0, dtype=torch.float32)

    def attend(self, heads: Heads, rows: KVRows, batch: PagedBatch, number: int, scoring: Scoring) -> torch.Tensor:
        """Stores keys and values in row `number` of each page, then attends: [T, H, V], all float32.

        Query heads that share a KV head are neighbours. Padding rows give zeros.
        """
        shape, count = self._shape, heads.query.shape[0]
        parts = [part if part.stride(-1) == 1 else part.contiguous() for part in (heads.key, heads.value)]
        addresses = [place for part in parts for place in (part.data_ptr(), part.stride(0), part.stride(1))]
        self._put(*addresses, batch.slots.data_ptr(), rows.data.data_ptr(), count, number)
        grouped = heads.query.reshape(count, shape.kv_heads, shape.fold, shape.dim)
        queries = grouped.transpose(1, 2).contiguous()
        # No kernel writes a padding row.
        padded = batch.query_start[-1].item() < count
        out = (torch.zeros if padded else torch.empty)(
            (count, shape.fold, shape.kv_heads, shape.value_dim), dtype=torch.float32
        )
        table, units = batch.pages.shape[1], count * shape.kv_heads
        work = units * shape.fold * shape.dim * min(batch.longest, scoring.window or batch.longest)
        threads = min(torch.get_num_threads(), units, 1 + work // _WORK)
        room = next_power_of_two(scratch_size(shape, self._width, table))
        if self._scratch.numel() < threads * room:
            self._scratch = torch.empty(threads * room, dtype=torch.float32)
        scaling = torch.tensor([scoring.scale], dtype=torch.float32)
        sinks = None
        if scoring.sinks is not None:
            sinks = scoring.sinks.detach().float().view(shape.kv_heads, shape.fold).t().contiguous()
        alibi = scoring.alibi
        bias: AlibiKind = None if alibi is None else "rounded" if alibi.rounded else "distance"
        kind = (sinks is not None, scoring.softcap, batch.paths is not None, scoring.chunk is not None, bias)
        if kind not in self._attends:
            self._attends[kind] = attend_library(shape, self._width, *kind)["attend"]
        function = self._attends[kind]
        paths: tuple[int, ...] = ()
        if batch.paths is not None:
            places = batch.paths.places
            paths = batch.paths.start.data_ptr(), places.data_ptr(), places.shape[1]
        if alibi is not None:
            slopes = alibi.slopes.bfloat16().float() if alibi.rounded else alibi.slopes.float()
            slopes = slopes.view(shape.kv_heads, shape.fold).t().contiguous()
            factor = torch.tensor([alibi.factor], dtype=torch.float32)
            paths = *paths, slopes.data_ptr(), factor.data_ptr()

        def run(thread: int) -> None:
            function(
                queries.data_ptr(),
                shape.queries,
                rows.data.data_ptr(),
                batch.pages.data_ptr(),
                batch.context.data_ptr(),
                batch.query_start.data_ptr(),
                out.data_ptr(),
                self._scratch.data_ptr() + 4 * room * thread,
                table,
                number,
                batch.sequences,
                thread,
                threads,
                scaling.data_ptr(),
                scoring.chunk or scoring.window or NO_WINDOW,
                0 if sinks is None else sinks.data_ptr(),
                *paths,
            )

        TEAM.run(threads, run)
        return out.transpose(1, 2).reshape(count, -1, shape.value_dim)


@cache
def _put_library(shape: CacheShape, width: int) -> Library:
    return Library({"put": partial(emit_put, shape=shape, width=width)})


@cache
def attend_library(
    shape: HeadShape,
    width: int,
    sinks: bool,
    softcap: float | None,
    trees: bool,
    chunked: bool = False,
    alibi: AlibiKind = None,
) -> Library:
    """Function `attend`, see `emit_attend`. Raises LookupError where the machine has no vectors for it."""
    emitter = partial(
        emit_attend, shape=shape, width=width, sinks=sinks, softcap=softcap, trees=trees, chunked=chunked, alibi=alibi
    )
    return Library({"attend": emitter})


def emit_put(module: ir.Module, name: str, shape: CacheShape, width: int) -> None:
    """Writes keys and values to their slots.

    Arguments of the function, in order:
    key, key_row, key_head        float32 [T, kv_heads, dim], and the numbers from a row and from a head to the next
    value, value_row, value_head  likewise; not read where values are a part of keys
    slots                         int64 [T]: page · page_size + place
    rows                          the rows of the cache
    count                         T
    layer
    """
    arguments = ("key", "@key_row", "@key_head", "value", "@value_row", "@value_head", "slots", "rows")
    code = KernelCode(module, name, (*arguments, "@count", "@layer"), width)
    given, tokens = code.arguments, code.number(shape.page_size)
    kept = Cache(code, shape, given["rows"])
    with code.loop(0, given["count"]) as row:
        slot = code.integer(given["slots"], row, I64)
        page, place = kept.page(code.builder.sdiv(slot, tokens), given["layer"]), code.builder.srem(slot, tokens)
        with code.loop(0, shape.kv_heads) as head:
            kinds = ((KEY, "key", shape.kept.key), (VALUE, "value", shape.kept.value))
            for which, part, size in kinds[: 1 if shape.kept.latent else 2]:
                source = code.at(given[part], code.times(row, given[f"{part}_row"]))
                source = code.at(source, code.times(head, given[f"{part}_head"]))
                values: list[Value] = [code.load(code.at(source, at)) for at in range(0, size, width)]
                kept.store(page, place, which, head, values)
    code.end()
