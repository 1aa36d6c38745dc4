"""The kernels of one model's decoder layers on a CPU, as functions of tensors, compiled for the model's shapes.

The matrix products stay torch's; between them a layer is four calls: norm, store (which rotates queries and keys by
their positions and writes keys and values into their pages), attend (`attention.py`) and gate. Below `LayerKernels` is
the LLVM code of the three that are not attention.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import torch
from llvmlite import ir

from qpdsl.executor.kernels.data.paged_batch import PagedBatch
from qpdsl.executor.kernels.data.rounding import next_power_of_two
from qpdsl.executor.kernels.llvm.attention import emit_attend
from qpdsl.executor.kernels.llvm.builder import I64, KernelCode, Value
from qpdsl.executor.kernels.llvm.cache import KEY, VALUE, Cache, HeadShape
from qpdsl.executor.kernels.llvm.compile import Library, vector_width

Activation = Literal["silu", "gelu_tanh"]

# gelu(x) ≈ x · sigmoid(2 · sqrt(2 / π) · (x + 0.044715 x³)) (Hendrycks and Gimpel, 2016)
_GELU, _CUBE = 1.5957691216057308, 0.044715
# Queries of a thread at least: fewer are not worth waking another one.
_ROWS_A_THREAD = 32


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What the kernels are compiled for.

    hidden:       the width of the hidden states
    intermediate: the width of the MLP, between its gate and its down projection
    epsilon:      of the RMS norms
    head_epsilon: of the RMS norms over single heads; None for a model without them
    scoring:      scale and window of the attention of each layer
    """

    heads: HeadShape
    hidden: int
    intermediate: int
    activation: Activation
    epsilon: float
    head_epsilon: float | None
    scoring: tuple[tuple[float, int | None], ...]


class LayerKernels:
    """Kernels over float32. Raises LookupError where they cannot be compiled for the machine or the shapes."""

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
        # The pool starts its threads when they are needed.
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
        rotations: torch.Tensor,
        positions: torch.Tensor,
        batch: PagedBatch,
        rows: torch.Tensor,
        weights: torch.Tensor | None,
        layer: int,
    ) -> None:
        """Rotates queries and keys of `joined` [T, joined] in place; writes keys and values to their slots in `rows`.

        `rotations` complex64 [P, dim / 2] by position; `weights` [heads, dim] of the norms over single heads.
        """
        self._store(
            joined.data_ptr(),
            rotations.data_ptr(),
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
        """Attention of the queries of `joined` after `store`, into `out` [T, queries]; padding rows are not written."""
        table = batch.pages.shape[1]
        function = self._attends[layer]
        count = joined.shape[0]
        workers = min(torch.get_num_threads(), count // _ROWS_A_THREAD)
        scratch = self._scratches(max(1, workers), table * self._shape.heads.page_size * self._block)

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

    def _scratches(self, count: int, size: int) -> list[torch.Tensor]:
        """At least `count` tensors of at least `size` float32."""
        if len(self._scratch) < count or self._scratch[0].numel() < size:
            self._scratch = [torch.empty(next_power_of_two(size), dtype=torch.float32) for _ in range(count)]
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
    """The width of the widest vectors that divide every row: for narrow models less than the machine has."""
    width = vector_width()
    while width and any(size % width for size in (shape.heads.dim, shape.hidden, shape.intermediate)):
        width //= 2
    if width < 4:
        raise LookupError("no vectors")
    return width


def emit_norm(module: ir.Module, name: str, size: int, width: int, epsilon: float) -> None:
    """RMS norm. Arguments: hidden float32 [T, size]; weight float32 [size]; out float32 [T, size]; T."""
    code = KernelCode(module, name, ("hidden", "weight", "out", "@count"), width)
    builder, arguments = code.builder, code.arguments
    with code.loop(0, arguments["count"]) as row:
        start = code.times(row, size)
        hidden, out = code.at(arguments["hidden"], start), code.at(arguments["out"], start)
        # Two sums, so that one addition need not wait for the other.
        sums = [code.variable(code.vector, code.constant(0.0)) for _ in range(2 if size % (2 * width) == 0 else 1)]
        with code.loop(0, size, width * len(sums)) as at:
            for index, total in enumerate(sums):
                value = code.load(code.at(hidden, code.add(at, index * width)))
                total.set(code.fma(value, value, total.get()))
        squares = sums[0].get()
        for total in sums[1:]:
            squares = builder.fadd(squares, total.get())
        scale = _norm_scale(code, squares, size, epsilon)
        with code.loop(0, size, width) as at:
            value = builder.fmul(code.load(code.at(hidden, at)), scale)
            code.store(builder.fmul(value, code.load(code.at(arguments["weight"], at))), code.at(out, at))
    code.end()


def emit_gate(module: ir.Module, name: str, size: int, width: int, activation: Activation) -> None:
    """act(gate) · up. Arguments: widened float32 [T, 2 * size], gate first; out float32 [T, size]; T."""
    code = KernelCode(module, name, ("widened", "out", "@count"), width)
    builder, arguments = code.builder, code.arguments
    with code.loop(0, arguments["count"]) as row:
        start = code.times(row, size)
        gates = code.at(arguments["widened"], code.times(start, 2))
        ups, out = code.at(gates, size), code.at(arguments["out"], start)
        with code.loop(0, size, width) as at:
            gate = code.load(code.at(gates, at))
            activated = builder.fmul(gate, _sigmoid(code, _sigmoid_argument(code, gate, activation)))
            code.store(builder.fmul(activated, code.load(code.at(ups, at))), code.at(out, at))
    code.end()


def _sigmoid_argument(code: KernelCode, gate: Value, activation: Activation) -> Value:
    """The y of which act(gate) is gate · sigmoid(y)."""
    if activation == "silu":
        return gate
    square = code.builder.fmul(gate, gate)
    inner = code.fma(square, code.constant(_CUBE), code.constant(1.0))
    return code.builder.fmul(code.builder.fmul(gate, inner), code.constant(_GELU))


def _sigmoid(code: KernelCode, value: Value) -> Value:
    one = code.constant(1.0)
    power = code.exp(code.builder.fneg(value))
    return code.builder.fdiv(one, code.builder.fadd(one, power))


def emit_store(module: ir.Module, name: str, shape: HeadShape, width: int, epsilon: float | None) -> None:
    """Rotates queries and keys by their positions, in place, and stores keys and values in the pages of a layer.

    Arguments of the function, in order:
    joined     float32 [T, joined]
    rotations  float32 [P, dim], the cosine and the sine of each pair by position
    positions  int64 [T]
    slots      int64 [T]
    rows       the rows of the cache
    weights    float32 [(fold + 1) * kv_heads, dim] of the norms over single heads; not read where `epsilon` is None
    count      T
    layer
    """
    code = KernelCode(
        module, name, ("joined", "rotations", "positions", "slots", "rows", "weights", "@count", "@layer"), width
    )
    builder, arguments = code.builder, code.arguments
    cache = Cache(code, shape.cache, arguments["rows"])
    parts = range(0, shape.dim, width)
    heads, keys = shape.fold * shape.kv_heads, shape.kv_heads
    with code.loop(0, arguments["count"]) as row:
        position = code.integer(arguments["positions"], row, I64)
        joined = code.at(arguments["joined"], code.times(row, shape.joined))
        slot = code.integer(arguments["slots"], row, I64)
        size = code.number(shape.page_size)
        page = cache.page(builder.sdiv(slot, size), arguments["layer"])
        token = builder.srem(slot, size)
        angles = code.at(arguments["rotations"], code.times(position, shape.dim))
        rotation = _Rotation(code, shape.dim, epsilon, angles)
        with code.loop(0, heads) as head:
            target = code.at(joined, code.times(head, shape.dim))
            for part, value in zip(parts, rotation.emit(joined, head), strict=True):
                code.store(value, code.at(target, part))
        with code.loop(0, keys) as head:
            cache.store(page, token, KEY, head, rotation.emit(joined, code.add(head, heads)))
            source = code.at(joined, code.times(code.add(head, heads + keys), shape.dim))
            cache.store(page, token, VALUE, head, [code.load(code.at(source, part)) for part in parts])
    code.end()


class _Rotation:
    """The code of the rotary embedding of one token's heads: pairs (a, b) become (a·cos - b·sin, b·cos + a·sin).

    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, section 3.4.
    """

    def __init__(self, code: KernelCode, dim: int, epsilon: float | None, angles: Value) -> None:
        """`angles`: the address of the cosine and the sine of each pair."""
        self._code, self._dim, self._epsilon = code, dim, epsilon
        self._parts = range(0, dim, code.width)
        lanes = range(code.width)
        signs = code.constant([-1.0 if lane % 2 == 0 else 1.0 for lane in lanes])
        pairs = [code.load(code.at(angles, part)) for part in self._parts]
        self._cosines = [code.shuffle(pair, pair, [lane & ~1 for lane in lanes]) for pair in pairs]
        sines = [code.shuffle(pair, pair, [lane | 1 for lane in lanes]) for pair in pairs]
        self._sines = [code.builder.fmul(sine, signs) for sine in sines]
        self._swapped = [lane ^ 1 for lane in lanes]

    def emit(self, joined: Value, head: Value) -> list[Value]:
        """The vectors of a head of `joined`, normalized where there is a norm over single heads, and rotated."""
        code, builder = self._code, self._code.builder
        offset = code.times(head, self._dim)
        values = [code.load(code.at(joined, code.add(offset, part))) for part in self._parts]
        if self._epsilon is not None:
            squares = builder.fmul(values[0], values[0])
            for value in values[1:]:
                squares = code.fma(value, value, squares)
            scale = _norm_scale(code, squares, self._dim, self._epsilon)
            weights = [code.load(code.at(code.arguments["weights"], code.add(offset, part))) for part in self._parts]
            values = [
                builder.fmul(builder.fmul(value, scale), weight) for value, weight in zip(values, weights, strict=True)
            ]
        return [
            code.fma(code.shuffle(value, value, self._swapped), sine, builder.fmul(value, cosine))
            for value, cosine, sine in zip(values, self._cosines, self._sines, strict=True)
        ]


def _norm_scale(code: KernelCode, squares: Value, count: int, epsilon: float) -> Value:
    """One over the root mean square of `count` values, in every lane, from a vector of sums of their `squares`."""
    builder = code.builder
    mean = builder.fmul(code.total(squares), code.constant(1.0 / count))
    return builder.fdiv(code.constant(1.0), code.square_root(builder.fadd(mean, code.constant(epsilon))))
