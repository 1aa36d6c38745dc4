"""The gated delta rule between the projections of a layer, as one function for a CPU. See `GatedDelta`.

A unit is a key head of some segments, with the value heads that share it: no other thread needs what it computes. Of a
few tokens at a time it convolves its channels, then goes through each block of columns of its matrices, then norms; so
what lies between stays in a core's nearest cache, and a matrix is read from memory once and written once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

import torch
from llvmlite import ir

from qpdsl.executor.kernels.data.states import StateStep
from qpdsl.executor.kernels.llvm.compile import TEAM, Function, vector_width
from qpdsl.executor.kernels.llvm.forward import dividing
from qpdsl.executor.kernels.llvm.gates import NormShape, norm_group
from qpdsl.executor.kernels.llvm.kernel_code import F32, I64, POINTER, KernelCode, Value
from qpdsl.executor.kernels.llvm.recurrence import ColumnsCode, SegmentCode, library

# Products that a thread computes at least: fewer are not worth waking one.
_WORK = 1 << 19
# Tokens that are taken at a time.
_TOKENS = 16
# Addresses, which a layer's calls share: float32 but for the zeros.
# weight, bias     of the convolution, [taps, channels] and [channels], if biased
# zeros            dtype [taps - 1, channels], for what comes before a text
# decay_bias, rate [value_heads], or [value_heads, key_dim] by row
# factors          [6]: of queries and of keys, the largest β, what is added to their sums of squares, the bound of
#                  logarithms of decays, and what is added to the mean square of outputs
# norm             [value_dim]
CONSTANTS = ("weight", "bias", "zeros", "decay_bias", "rate", "factors", "norm")


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Matrices of `key_dim` rows for each value head, in blocks of `columns`, behind a convolution of `taps` tokens.

    by_row:  each row of a matrix decays by itself
    bounded: logarithms of decays have a bound
    rounds:  they are rounded to the type that comes in
    norm:    its groups are the value heads, and its type is what comes in and goes out
    """

    key_heads: int
    key_dim: int
    columns: int
    taps: int
    biased: bool
    by_row: bool
    bounded: bool
    rounds: bool
    norm: NormShape

    @property
    def shared(self) -> int:
        """Value heads to a key head."""
        return self.norm.groups // self.key_heads

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.norm.groups * self.norm.size


class DeltaKernel:
    """The function for a shape, over units that threads share out."""

    def __init__(self, shape: DeltaShape) -> None:
        """Raises LookupError where the machine has no vectors for the shape."""
        width = dividing(vector_width(), gcd(shape.key_dim, shape.columns))
        self._library = library(emit_delta, shape, width)
        self._function: Function = self._library["run"]
        self.address = self._library.address("run")
        self.heads = shape.key_heads
        self._work = 3 * shape.key_dim * shape.shared * shape.norm.size

    def __call__(self, numbers: tuple[int, ...], rows: int, step: StateStep) -> None:
        """`numbers`: the arguments before those of the step."""
        units = self.heads * (len(step.chains) - 1)
        places = step.rows.block_bytes, step.table.data_ptr(), step.chains.data_ptr(), len(step.chains) - 1
        threads = min(torch.get_num_threads(), units, 1 + rows * self.heads * self._work // _WORK)

        def run(thread: int) -> None:
            self._function(*numbers, *places, units * thread // threads, units * (thread + 1) // threads)

        TEAM.run(threads, run)


def emit_delta(module: ir.Module, name: str, shape: DeltaShape, width: int) -> None:
    """Arguments of the function, in order:

    constants  see `CONSTANTS`
    joined     dtype [T, channels], queries, keys, values; and the numbers from a row to the next
    gate       dtype [T, value_heads, value_dim], likewise
    write      dtype [T, value_heads], likewise
    inputs     dtype [T, value_heads], or [T, value_heads, key_dim] by row, likewise
    out        dtype [T, value_heads, value_dim], likewise
    conv       the last inputs of the convolution in block 0
    states     the matrices there
    block      bytes from a block to the next
    segments   int64 [S, 4]
    chains     int64 [C + 1], see `StateStep`
    count      C
    begin      the first unit, and
    end        the one after the last: those of a head are one after the other
    """
    parts = (part for name in ("joined", "gate", "write", "inputs", "out") for part in (name, f"@{name}_row"))
    arguments = ("constants", *parts, "conv", "states", "@block", "segments", "chains", "@count", "@begin", "@end")
    _DeltaCode(KernelCode(module, name, arguments, width), shape).emit()


class _DeltaCode:
    """The code for a shape. Of each token of a few, `_rows` has a query, a key and the values, and then the outputs."""

    def __init__(self, code: KernelCode, shape: DeltaShape) -> None:
        self._code, self._shape = code, shape
        self._dtype, self._kind = shape.norm.dtype, code.float_type(shape.norm.dtype)
        dim, self._values = shape.key_dim, shape.shared * shape.norm.size
        self._row = 2 * dim + self._values
        self._rows = code.array(F32, _TOKENS * self._row)
        # Of each value head: decays, a vector or one for each row, and a vector of β.
        self._decay = dim if shape.by_row else code.width
        self._gates = self._decay + code.width
        self._gate_rows = code.array(F32, _TOKENS * shape.shared * self._gates)
        places = (code.at(code.arguments["constants"], index, I64) for index in range(len(CONSTANTS)))
        self._given = {
            name: code.builder.load(place, typ=POINTER) for name, place in zip(CONSTANTS, places, strict=True)
        }
        factors = [code.broadcast(code.at(self._given["factors"], index)) for index in range(6)]
        *self._scales, self._largest, self._epsilon, self._bound, self._norm_epsilon = factors

    def emit(self) -> None:
        code, given = self._code, self._code.arguments
        with code.loop(given["begin"], given["end"]) as unit:
            head, chain = code.builder.sdiv(unit, given["count"]), code.builder.srem(unit, given["count"])
            bounds = (code.integer(given["chains"], code.add(chain, end), I64) for end in range(2))
            with code.loop(*bounds) as number:
                segment = SegmentCode(code, number)
                with code.loop(0, segment.count, _TOKENS) as first:
                    tokens = code.least(code.builder.sub(segment.count, first), _TOKENS)
                    row, is_first = code.add(segment.row, first), code.builder.icmp_signed("==", first, code.number(0))
                    self._convolve(segment, head, row, tokens, is_first)
                    with code.loop(0, tokens) as token:
                        self._gate(head, code.add(row, token), token)
                    for shared in range(self._shape.shared):
                        self._recur(segment, head, shared, tokens, is_first)
                    with code.loop(0, tokens) as token:
                        self._norm(head, code.add(row, token), token)
        code.end()

    def _convolve(self, segment: SegmentCode, head: Value, row: Value, tokens: Value, is_first: Value) -> None:
        """The channels of a head, of some tokens; the last inputs are kept for the next."""
        code, builder, shape, dtype = self._code, self._code.builder, self._shape, self._dtype
        channels, history = shape.channels, shape.taps - 1
        source, target = segment.blocks("conv")
        before = builder.select(segment.is_fresh, self._given["zeros"], source)
        before = builder.select(is_first, before, target)
        for begin, count, place in self._channels(head):
            with code.loop(0, count, code.width) as at:
                channel = code.add(begin, at)
                weights = [
                    code.load(code.at(self._given["weight"], code.add(channel, tap * channels)))
                    for tap in range(shape.taps)
                ]
                kept = [
                    code.variable(code.vector, code.load_float(before, code.add(channel, tap * channels), dtype))
                    for tap in range(history)
                ]
                with code.loop(0, tokens) as token:
                    values = self._of_row("joined", code.add(row, token))
                    inputs = [*(part.get() for part in kept), code.load_float(values, channel, dtype)]
                    total = builder.fmul(inputs[0], weights[0])
                    for value, weight in zip(inputs[1:], weights[1:], strict=True):
                        total = builder.fadd(total, builder.fmul(value, weight))
                    if shape.biased:
                        total = builder.fadd(total, code.load(code.at(self._given["bias"], channel)))
                    total = code.as_float(builder.fmul(total, code.sigmoid(total)), dtype)
                    code.store(total, code.at(self._own(token), code.add(at, place)))
                    for part, value in zip(kept, inputs[1:], strict=True):
                        part.set(value)
                for tap, part in enumerate(kept):
                    code.store_float(part.get(), target, code.add(channel, tap * channels), dtype)

    def _channels(self, head: Value) -> Iterator[tuple[Value, int, int]]:
        """Of the queries, keys and values of a head: the first channel, how many, and their place in `_rows`."""
        code, shape, dim = self._code, self._shape, self._shape.key_dim
        keys = shape.key_heads * dim
        for which in range(2):
            yield code.add(code.times(head, dim), which * keys), dim, which * dim
        yield code.add(code.times(head, self._values), 2 * keys), self._values, 2 * dim

    def _gate(self, head: Value, row: Value, token: Value) -> None:
        """Gives a token's query and key their lengths, and makes its decays and β."""
        code, builder, shape, dtype = self._code, self._code.builder, self._shape, self._dtype
        dim, own = shape.key_dim, self._own(token)
        for which, scale in enumerate(self._scales):
            values, squares = code.at(own, which * dim), code.variable(code.vector, code.constant(0.0))
            with code.loop(0, dim, code.width) as at:
                value = code.load(code.at(values, at))
                squares.set(code.fma(value, value, squares.get()))
            length = code.square_root(builder.fadd(code.total(squares.get()), self._epsilon))
            factor = builder.fdiv(scale, length)
            with code.loop(0, dim, code.width) as at:
                code.store(builder.fmul(code.load(code.at(values, at)), factor), code.at(values, at))
        inputs, write = self._of_row("inputs", row), self._of_row("write", row)
        for shared in range(shape.shared):
            number, gates = code.add(code.times(head, shape.shared), shared), self._gates_of(token, shared)
            if shape.by_row:
                with code.loop(0, dim, code.width) as at:
                    place = code.add(code.times(number, dim), at)
                    bias, rate = (code.load(code.at(self._given[name], place)) for name in ("decay_bias", "rate"))
                    code.store(self._decayed(code.load_float(inputs, place, dtype), bias, rate), code.at(gates, at))
            else:
                bias, rate = (code.broadcast(code.at(self._given[name], number)) for name in ("decay_bias", "rate"))
                code.store(self._decayed(code.broadcast_float(inputs, number, dtype), bias, rate), gates)
            beta = code.as_float(code.sigmoid(code.broadcast_float(write, number, dtype)), dtype)
            code.store(builder.fmul(beta, self._largest), code.at(gates, self._decay))

    def _decayed(self, value: Value, bias: Value, rate: Value) -> Value:
        """e^(rate·softplus(value + bias)), or e^(bound·sigmoid(rate·(value + bias)))."""
        code, builder = self._code, self._code.builder
        value = builder.fadd(value, bias)
        if self._shape.bounded:
            logarithm = builder.fmul(self._bound, code.sigmoid(builder.fmul(rate, value)))
        else:
            logarithm = builder.fmul(rate, code.softplus(value))
        return code.exp(code.as_float(logarithm, self._dtype) if self._shape.rounds else logarithm)

    def _recur(self, segment: SegmentCode, head: Value, shared: int, tokens: Value, is_first: Value) -> None:
        """S ← a·S + k⊗u and o = Sᵀq with u = β·(v - a·Sᵀk), for some tokens of one value head; o in place of v."""
        code, builder, shape = self._code, self._code.builder, self._shape
        dim, columns = shape.key_dim, shape.columns
        vectors, blocks = range(columns // code.width), segment.blocks()
        matrix = code.times(code.add(code.times(head, shape.shared), shared), dim * shape.norm.size)
        with code.loop(0, shape.norm.size, columns) as column:
            offset = code.add(matrix, code.times(column, dim))
            with builder.if_then(is_first):
                segment.begin(dim, columns, offset, len(vectors), blocks)
            part = ColumnsCode(code, code.at(blocks[1], offset), dim, columns)
            with code.loop(0, tokens) as token:
                own, gates = self._own(token), self._gates_of(token, shared)
                query, key = own, code.at(own, dim)
                values = code.at(own, code.add(column, 2 * dim + shared * shape.norm.size))
                beta, decay = code.load(code.at(gates, self._decay)), None if shape.by_row else code.load(gates)
                decays = gates if shape.by_row else None
                updates = []
                for vector, memory in enumerate(part.recalled(key, decays)):
                    memory = memory if decay is None else builder.fmul(memory, decay)
                    value = code.load(code.at(values, vector * code.width))
                    updates.append(builder.fmul(builder.fsub(value, memory), beta))
                for vector, value in enumerate(part.updated(query, key, updates, decay, decays)):
                    code.store(value, code.at(values, vector * code.width))

    def _norm(self, head: Value, row: Value, token: Value) -> None:
        code, size = self._code, self._shape.norm.size
        gates, out = self._of_row("gate", row), self._of_row("out", row)
        with code.loop(0, self._values, size) as at:
            place = code.add(code.times(head, self._values), at)
            values = code.at(self._own(token), code.add(at, 2 * self._shape.key_dim))
            of_head = code.at(gates, place, self._kind), code.at(out, place, self._kind)
            norm_group(code, self._shape.norm, values, of_head[0], self._given["norm"], self._norm_epsilon, of_head[1])

    def _of_row(self, part: str, row: Value) -> Value:
        given = self._code.arguments
        return self._code.at(given[part], self._code.times(row, given[f"{part}_row"]), self._kind)

    def _own(self, token: Value) -> Value:
        return self._code.at(self._rows, self._code.times(token, self._row))

    def _gates_of(self, token: Value, shared: int) -> Value:
        """The decays and the β of a value head."""
        code, size = self._code, self._gates
        return code.at(self._gate_rows, code.add(code.times(token, self._shape.shared * size), shared * size))
