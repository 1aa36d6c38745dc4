"""Recurrences over the segments of a step, as LLVM code for a CPU. See `kernels/recurrences.py`.

Every number of a state belongs to one thread, which takes the segments in their order and each segment's tokens in
theirs, so a segment may go on from the states that one before it left, and no sum is ever shared out. What a thread
rewrites with every token is small enough for the nearest cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from llvmlite import ir

from qpdsl.executor.kernels.data.states import StateSegment, StateStep
from qpdsl.executor.kernels.llvm.compile import TEAM, Function, Library, vector_width
from qpdsl.executor.kernels.llvm.forward import dividing
from qpdsl.executor.kernels.llvm.kernel_code import I8, I64, KernelCode, Value, Variable

# Products that a thread computes at least: fewer are not worth waking one.
_WORK = 1 << 19


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """`taps` neighbouring tokens of each of `channels`, numbers of `dtype`; SiLU comes after it if `activated`."""

    channels: int
    taps: int
    biased: bool
    activated: bool
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """Matrices of `key_dim` rows and `value_dim` columns, one for each of `value_heads`, by blocks of `columns`."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    columns: int


@dataclass(frozen=True, slots=True)
class SelectiveShape:
    """`size` numbers for each of `channels`."""

    channels: int
    size: int


class StepKernel:
    """The function that `emit` writes for a shape, over units that threads share out.

    Its last arguments are
    states   the part of the states in block 0
    block    bytes from a block to the next
    segments int64 [S, 4]
    count    S
    begin    the first unit, and
    end      the one after the last
    """

    def __init__(self, emit: Callable[..., None], shape: object, width: int, units: int, work: int) -> None:
        """`work`: products for one token in a unit."""
        self._library = library(emit, shape, width)
        self._function: Function = self._library["run"]
        self._units, self._work = units, work

    def __call__(self, numbers: tuple[int, ...], rows: int, kept: torch.Tensor, step: StateStep) -> None:
        """`numbers`: the arguments before. `kept` [blocks, ...]: a part of the states."""
        table, units = step.table, self._units
        states = kept.data_ptr(), kept.stride(0) * kept.itemsize, table.data_ptr(), len(table)
        threads = min(torch.get_num_threads(), units, 1 + rows * units * self._work // _WORK)

        def run(thread: int) -> None:
            self._function(*numbers, *states, units * thread // threads, units * (thread + 1) // threads)

        TEAM.run(threads, run)


@cache
def library(emit: Callable[..., None], shape: object, width: int) -> Library:
    """With the function `run`, that `emit` writes for a shape."""
    return Library({"run": partial(emit, shape=shape, width=width)})


def convolution(shape: ConvolutionShape) -> StepKernel:
    """See `emit_convolution`. Raises LookupError where the machine has no vectors for the shape."""
    width = dividing(vector_width(), shape.channels)
    return StepKernel(emit_convolution, shape, width, shape.channels // width, width * shape.taps)


def matrix(shape: MatrixShape) -> StepKernel:
    """See `emit_matrix`. Raises LookupError where the machine has no vectors for the shape."""
    width = dividing(vector_width(), shape.columns)
    units = shape.value_heads * shape.value_dim // shape.columns
    return StepKernel(emit_matrix, shape, width, units, 3 * shape.key_dim * shape.columns)


def selective(shape: SelectiveShape) -> StepKernel:
    """See `emit_selective`. Raises LookupError where the machine has no vectors for the shape."""
    width = dividing(vector_width(), shape.channels)
    # An exponential is worth some ten products.
    return StepKernel(emit_selective, shape, width, shape.channels // width, 12 * shape.size * width)


STATES = ("states", "@block", "segments", "@count", "@begin", "@end")


class SegmentCode:
    """Code over one segment of a step, number `number` of the table."""

    def __init__(self, code: KernelCode, number: Value) -> None:
        place = code.times(number, len(StateSegment._fields))
        self._source, self._target, self.row, self.count = (
            code.integer(code.arguments["segments"], code.add(place, field), I64)
            for field in range(len(StateSegment._fields))
        )
        self._code = code
        self.is_fresh = code.builder.icmp_signed("<", self._source, code.number(0))
        self._moves = code.builder.icmp_signed("!=", self._source, self._target)

    def blocks(self, states: str = "states") -> tuple[Value, Value]:
        """Where a part of the states is before and after it."""
        code, block = self._code, self._code.arguments["block"]
        at = code.arguments[states]
        return code.at(at, code.times(self._source, block), I8), code.at(at, code.times(self._target, block), I8)

    def begin(
        self, rows: int, stride: int, offset: Value, vectors: int, blocks: tuple[Value, Value] | None = None
    ) -> Value:
        """Makes the target what the source is: `rows` rows of vectors, `stride` floats apart, `offset` floats on.

        Returns where they are in the target.
        """
        code, (source, target) = self._code, blocks or self.blocks()
        with code.builder.if_then(self._moves), code.loop(0, rows) as row:
            place = code.add(offset, code.times(row, stride))
            for vector in range(vectors):
                at = code.add(place, vector * code.width)
                value = code.variable(code.vector, code.constant(0.0))
                with code.builder.if_then(code.builder.not_(self.is_fresh)):
                    value.set(code.load(code.at(source, at)))
                code.store(value.get(), code.at(target, at))
        return code.at(target, offset)


def emit_convolution(module: ir.Module, name: str, shape: ConvolutionShape, width: int) -> None:
    """A causal convolution of each channel by itself.

    Arguments of the function, in order, before those of `StepKernel`; a unit is a vector of channels:
    rows    dtype [T, channels], and the numbers from a row to the next
    weight  float32 [taps, channels]
    bias    float32 [channels], if biased
    zeros   dtype [channels], for what comes before a text
    out     dtype [T, channels]
    """
    code = KernelCode(module, name, ("rows", "@row", "weight", "bias", "zeros", "out", *STATES), width)
    builder, given, dtype = code.builder, code.arguments, shape.dtype
    kind = code.float_type(dtype)
    history, channels = shape.taps - 1, shape.channels
    first, last = code.times(given["begin"], width), code.times(given["end"], width)
    with code.loop(0, given["count"]) as number:
        segment = SegmentCode(code, number)
        source, target = segment.blocks()
        rows = code.at(given["rows"], code.times(segment.row, given["row"]), kind)
        out = code.at(given["out"], code.times(segment.row, channels), kind)

        def input_of(place: Value) -> Value:
            """The address of a token's numbers by its place; those of the states have the first `history` places."""
            token = code.add(place, -history)
            before = code.at(source, code.times(place, channels), kind)
            before = builder.select(segment.is_fresh, given["zeros"], before)
            is_new = builder.icmp_signed(">=", token, code.number(0))
            return builder.select(is_new, code.at(rows, code.times(token, given["row"]), kind), before)

        with code.loop(0, segment.count) as token:
            inputs = [input_of(code.add(token, tap)) for tap in range(shape.taps)]
            place = code.at(out, code.times(token, channels), kind)
            with code.loop(first, last, width) as channel:
                total = None
                for tap, values in enumerate(inputs):
                    weight = code.load(code.at(given["weight"], code.add(channel, tap * channels)))
                    product = builder.fmul(code.load_float(values, channel, dtype), weight)
                    total = product if total is None else builder.fadd(total, product)
                if shape.biased:
                    total = builder.fadd(total, code.load(code.at(given["bias"], channel)))
                if shape.activated:
                    total = builder.fmul(total, code.sigmoid(total))
                code.store_float(total, place, channel, dtype)
        # In ascending order, since the target may be the source.
        for tap in range(history):
            values = input_of(code.add(segment.count, tap))
            kept = code.at(target, tap * channels, kind)
            with code.loop(first, last, width) as channel:
                code.store_float(code.load_float(values, channel, dtype), kept, channel, dtype)
    code.end()


class ColumnsCode:
    """The code of a block of `columns` columns of a matrix of `dim` rows, at `state`."""

    def __init__(self, code: KernelCode, state: Value, dim: int, columns: int) -> None:
        self._code, self._state, self._dim, self._columns = code, state, dim, columns
        self._vectors = columns // code.width
        # Sums of the even and of the odd rows, so that an addition need not wait for the one before it.
        self._sums = 2 if dim % 2 == 0 else 1

    def recalled(self, key: Value, decays: Value | None) -> list[Value]:
        """Sᵀk, of rows that have decayed by `decays` [dim] each, where there are some."""
        code, totals = self._code, self._totals()
        with code.loop(0, self._dim, self._sums) as first:
            for index, parts in enumerate(totals):
                at = code.add(first, index)
                factor = code.broadcast(code.at(key, at))
                if decays is not None:
                    factor = code.builder.fmul(factor, code.broadcast(code.at(decays, at)))
                for vector, part in enumerate(parts):
                    part.set(code.fma(code.load(self._place(at, vector)), factor, part.get()))
        return self._added(totals)

    def updated(
        self, query: Value, key: Value, updates: Sequence[Value], decay: Value | None, decays: Value | None
    ) -> list[Value]:
        """S ← a·S + k⊗u and then Sᵀq; all rows decay by the vector `decay`, or each by its own of `decays`."""
        code, builder, totals = self._code, self._code.builder, self._totals()
        with code.loop(0, self._dim, self._sums) as first:
            for index, parts in enumerate(totals):
                at = code.add(first, index)
                keys, queries = (code.broadcast(code.at(part, at)) for part in (key, query))
                factor = code.broadcast(code.at(decays, at)) if decay is None else decay
                for vector, part in enumerate(parts):
                    place = self._place(at, vector)
                    kept = code.fma(keys, updates[vector], builder.fmul(code.load(place), factor))
                    code.store(kept, place)
                    part.set(code.fma(kept, queries, part.get()))
        return self._added(totals)

    def _place(self, row: Value, vector: int) -> Value:
        code = self._code
        return code.at(self._state, code.add(code.times(row, self._columns), vector * code.width))

    def _totals(self) -> list[list[Variable]]:
        code = self._code
        return [
            [code.variable(code.vector, code.constant(0.0)) for _ in range(self._vectors)] for _ in range(self._sums)
        ]

    def _added(self, totals: list[list[Variable]]) -> list[Value]:
        first, *others = ([part.get() for part in parts] for parts in totals)
        for other in others:
            first = [self._code.builder.fadd(*both) for both in zip(first, other, strict=True)]
        return first


def emit_matrix(module: ir.Module, name: str, shape: MatrixShape, width: int) -> None:
    """S ← a·S + k⊗v and o = Sᵀq.

    Arguments of the function, in order, before those of `StepKernel`; all float32. A unit is a block of columns, those
    of a head one after the other.
    query  [T, key_heads, key_dim], and the numbers from a row to the next
    key    likewise
    value  [T, value_heads, value_dim], likewise
    decay  [T, value_heads]: a
    out    [T, value_heads, value_dim]
    """
    arguments = ("query", "@query_row", "key", "@key_row", "value", "@value_row", "decay", "out")
    code = KernelCode(module, name, (*arguments, *STATES), width)
    builder, given = code.builder, code.arguments
    heads, dim, columns = shape.value_heads, shape.key_dim, shape.columns
    vectors, per_head = range(columns // width), code.number(shape.value_dim // columns)
    with code.loop(given["begin"], given["end"]) as unit:
        head, block = builder.sdiv(unit, per_head), builder.srem(unit, per_head)
        key_head = builder.sdiv(head, code.number(heads // shape.key_heads))
        column = code.add(code.times(head, shape.value_dim), code.times(block, columns))
        with code.loop(0, given["count"]) as number:
            segment = SegmentCode(code, number)
            state = segment.begin(dim, columns, code.times(unit, dim * columns), len(vectors))
            part = ColumnsCode(code, state, dim, columns)
            with code.loop(segment.row, code.add(segment.row, segment.count)) as row:
                query, key = (
                    code.at(given[name], code.add(code.times(row, given[f"{name}_row"]), code.times(key_head, dim)))
                    for name in ("query", "key")
                )
                values = code.at(given["value"], code.add(code.times(row, given["value_row"]), column))
                updates = [code.load(code.at(values, vector * width)) for vector in vectors]
                decay = code.broadcast(code.at(given["decay"], code.add(code.times(row, heads), head)))
                out = code.at(given["out"], code.add(code.times(row, heads * shape.value_dim), column))
                for vector, value in enumerate(part.updated(query, key, updates, decay, None)):
                    code.store(value, code.at(out, vector * width))
    code.end()


def emit_selective(module: ir.Module, name: str, shape: SelectiveShape, width: int) -> None:
    """s ← e^(A·r)·s + B·u and o = Σ C·s for each channel, over its `size` numbers s.

    Arguments of the function, in order, before those of `StepKernel`; all float32. A unit is a vector of channels:
    logarithm  [size, channels]: A
    rate       [T, channels]: r
    update     [T, channels]: u
    into       [T, size], and the numbers from a row to the next: B
    out_of     likewise: C
    out        [T, channels]
    """
    arguments = ("logarithm", "rate", "update", "into", "@into_row", "out_of", "@out_of_row", "out")
    code = KernelCode(module, name, (*arguments, *STATES), width)
    builder, given, channels, size = code.builder, code.arguments, shape.channels, shape.size
    with code.loop(given["begin"], given["end"]) as unit:
        channel = code.times(unit, width)
        with code.loop(0, given["count"]) as place:
            segment = SegmentCode(code, place)
            state = segment.begin(size, channels, channel, 1)
            with code.loop(segment.row, code.add(segment.row, segment.count)) as row:
                place = code.add(code.times(row, channels), channel)
                rate, update = (code.load(code.at(given[part], place)) for part in ("rate", "update"))
                into, out_of = (
                    code.at(given[part], code.times(row, given[f"{part}_row"])) for part in ("into", "out_of")
                )
                total = code.variable(code.vector, code.constant(0.0))
                with code.loop(0, size) as number:
                    at = code.times(number, channels)
                    kept = code.at(state, at)
                    logarithm = code.load(code.at(given["logarithm"], code.add(at, channel)))
                    decayed = builder.fmul(code.load(kept), code.exp(builder.fmul(logarithm, rate)))
                    value = code.fma(code.broadcast(code.at(into, number)), update, decayed)
                    code.store(value, kept)
                    total.set(code.fma(code.broadcast(code.at(out_of, number)), value, total.get()))
                code.store(total.get(), code.at(given["out"], place))
    code.end()
