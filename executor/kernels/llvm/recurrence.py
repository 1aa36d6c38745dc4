"""Recurrences over the segments of a step, as LLVM code for a CPU. See `kernels/recurrences.py`.

Every number of a state belongs to one thread, which takes the segments in their order and each segment's tokens in
theirs, so a segment may go on from the states that one before it left, and no sum is ever shared out. What a thread
rewrites with every token is small enough for the nearest cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """Matrices of `key_dim` rows and `value_dim` columns, one for each of `value_heads`, by blocks of `columns`.

    `by_row`: each row decays by itself. `corrects`: the delta rule. Values are of `dtype`.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    columns: int
    by_row: bool
    corrects: bool
    dtype: torch.dtype


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


class _Segments:
    """Code over the segments of a step."""

    ARGUMENTS = ("states", "@block", "segments", "@count", "@begin", "@end")

    def __init__(self, code: KernelCode) -> None:
        self._code = code

    @contextmanager
    def each(self) -> Iterator[_Segment]:
        code = self._code
        with code.loop(0, code.arguments["count"]) as number:
            place = code.times(number, len(StateSegment._fields))
            fields = (
                code.integer(code.arguments["segments"], code.add(place, field), I64)
                for field in range(len(StateSegment._fields))
            )
            yield _Segment(code, *fields)


class _Segment:
    """One of them, in its loop."""

    def __init__(self, code: KernelCode, source: Value, target: Value, row: Value, count: Value) -> None:
        self._code, self.row, self.count = code, row, count
        block, states = code.arguments["block"], code.arguments["states"]
        self.source = code.at(states, code.times(source, block), I8)
        self.target = code.at(states, code.times(target, block), I8)
        self.is_fresh = code.builder.icmp_signed("<", source, code.number(0))
        self._moves = code.builder.icmp_signed("!=", source, target)

    def begin(self, rows: int, stride: int, offset: Value, vectors: int) -> None:
        """Makes the target what the source is: `rows` rows of vectors, `stride` floats apart, `offset` floats on."""
        code = self._code
        with code.builder.if_then(self._moves), code.loop(0, rows) as row:
            place = code.add(offset, code.times(row, stride))
            for vector in range(vectors):
                at = code.add(place, vector * code.width)
                value = code.variable(code.vector, code.constant(0.0))
                with code.builder.if_then(code.builder.not_(self.is_fresh)):
                    value.set(code.load(code.at(self.source, at)))
                code.store(value.get(), code.at(self.target, at))


def emit_convolution(module: ir.Module, name: str, shape: ConvolutionShape, width: int) -> None:
    """A causal convolution of each channel by itself.

    Arguments of the function, in order, before those of `StepKernel`; a unit is a vector of channels:
    rows    dtype [T, channels], and the numbers from a row to the next
    weight  float32 [taps, channels]
    bias    float32 [channels], if biased
    zeros   dtype [channels], for what comes before a text
    out     dtype [T, channels]
    """
    code = KernelCode(module, name, ("rows", "@row", "weight", "bias", "zeros", "out", *_Segments.ARGUMENTS), width)
    builder, given, dtype = code.builder, code.arguments, shape.dtype
    kind = code.float_type(dtype)
    history, channels = shape.taps - 1, shape.channels
    first, last = code.times(given["begin"], width), code.times(given["end"], width)
    with _Segments(code).each() as segment:
        rows = code.at(given["rows"], code.times(segment.row, given["row"]), kind)
        out = code.at(given["out"], code.times(segment.row, channels), kind)

        def input_of(place: Value) -> Value:
            """The address of a token's numbers by its place; those of the states have the first `history` places."""
            token = code.add(place, -history)
            before = code.at(segment.source, code.times(place, channels), kind)
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
            kept = code.at(segment.target, tap * channels, kind)
            with code.loop(first, last, width) as channel:
                code.store_float(code.load_float(values, channel, dtype), kept, channel, dtype)
    code.end()


def emit_matrix(module: ir.Module, name: str, shape: MatrixShape, width: int) -> None:
    """S ← a·S + k⊗u and o = Sᵀq, where u is v, or β·(v - a·Sᵀk) if the shape corrects.

    Arguments of the function, in order, before those of `StepKernel`; all float32 but value. A unit is a block of
    columns, those of a head one after the other.
    query  [T, key_heads, key_dim], and the numbers from a row to the next
    key    likewise
    value  dtype [T, value_heads, value_dim], likewise
    decay  [T, value_heads], or [T, value_heads, key_dim] by row: a
    beta   [T, value_heads], if it corrects
    out    [T, value_heads, value_dim]
    """
    arguments = ("query", "@query_row", "key", "@key_row", "value", "@value_row", "decay", "beta", "out")
    code = KernelCode(module, name, (*arguments, *_Segments.ARGUMENTS), width)
    builder, given = code.builder, code.arguments
    heads, dim, columns = shape.value_heads, shape.key_dim, shape.columns
    vectors, blocks = columns // width, shape.value_dim // columns
    # Sums of the even and of the odd rows, so that an addition need not wait for the one before it.
    sums = 2 if dim % 2 == 0 else 1
    per_head = code.number(blocks)
    with code.loop(given["begin"], given["end"]) as unit:
        head, block = builder.sdiv(unit, per_head), builder.srem(unit, per_head)
        key_head = builder.sdiv(head, code.number(heads // shape.key_heads))
        column = code.times(block, columns)
        offset = code.times(unit, dim * columns)
        with _Segments(code).each() as segment:
            segment.begin(dim, columns, offset, vectors)
            state = code.at(segment.target, offset)
            with code.loop(segment.row, code.add(segment.row, segment.count)) as row:
                query, key = (
                    code.at(given[part], code.add(code.times(row, given[f"{part}_row"]), code.times(key_head, dim)))
                    for part in ("query", "key")
                )
                of_head = code.add(code.times(row, heads), head)
                in_head = code.add(code.times(head, shape.value_dim), column)
                values = code.add(code.times(row, given["value_row"]), in_head)
                out = code.at(given["out"], code.add(code.times(row, heads * shape.value_dim), in_head))
                decays = code.at(given["decay"], code.times(of_head, dim) if shape.by_row else of_head)
                decay = None if shape.by_row else code.broadcast(decays)

                def totals() -> list[list[Variable]]:
                    return [
                        [code.variable(code.vector, code.constant(0.0)) for _ in range(vectors)] for _ in range(sums)
                    ]

                def added(parts: list[list[Variable]], vector: int) -> Value:
                    values = [part[vector].get() for part in parts]
                    return values[0] if len(values) == 1 else builder.fadd(*values)

                updates = [
                    code.load_float(given["value"], code.add(values, vector * width), shape.dtype)
                    for vector in range(vectors)
                ]
                if shape.corrects:
                    beta = code.broadcast(code.at(given["beta"], of_head))
                    recalled = totals()
                    with code.loop(0, dim, sums) as first:
                        for index, parts in enumerate(recalled):
                            at = code.add(first, index)
                            factor = code.broadcast(code.at(key, at))
                            if decay is None:
                                factor = builder.fmul(factor, code.broadcast(code.at(decays, at)))
                            for vector, part in enumerate(parts):
                                place = code.add(code.times(at, columns), vector * width)
                                part.set(code.fma(code.load(code.at(state, place)), factor, part.get()))
                    for vector, update in enumerate(updates):
                        memory = added(recalled, vector)
                        if decay is not None:
                            memory = builder.fmul(memory, decay)
                        updates[vector] = builder.fmul(builder.fsub(update, memory), beta)
                outputs = totals()
                with code.loop(0, dim, sums) as first:
                    for index, parts in enumerate(outputs):
                        at = code.add(first, index)
                        keys, queries = (code.broadcast(code.at(part, at)) for part in (key, query))
                        factor = code.broadcast(code.at(decays, at)) if decay is None else decay
                        for vector, part in enumerate(parts):
                            place = code.at(state, code.add(code.times(at, columns), vector * width))
                            kept = code.fma(keys, updates[vector], builder.fmul(code.load(place), factor))
                            code.store(kept, place)
                            part.set(code.fma(kept, queries, part.get()))
                for vector in range(vectors):
                    code.store(added(outputs, vector), code.at(out, vector * width))
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
    code = KernelCode(module, name, (*arguments, *_Segments.ARGUMENTS), width)
    builder, given, channels, size = code.builder, code.arguments, shape.channels, shape.size
    with code.loop(given["begin"], given["end"]) as unit:
        channel = code.times(unit, width)
        with _Segments(code).each() as segment:
            segment.begin(size, channels, channel, 1)
            state = code.at(segment.target, channel)
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
