"""What comes before and after the recurrence of a layer, as LLVM code for a CPU: each row by itself.

See `DeltaGates` and `GatedNorm` in `kernels/recurrences.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

import torch
from llvmlite import ir

from qpdsl.executor.kernels.llvm.compile import TEAM, Function, vector_width
from qpdsl.executor.kernels.llvm.forward import dividing
from qpdsl.executor.kernels.llvm.kernel_code import KernelCode, Value
from qpdsl.executor.kernels.llvm.recurrence import library

# Numbers that a thread computes at least.
_WORK = 1 << 16


@dataclass(frozen=True, slots=True)
class GatesShape:
    """`pairs` queries and as many keys of `dim` numbers, `writes` of β and `decays` of a decay; `dtype` comes in.

    `bounded`: logarithms of decays have a bound; `rounds`: they are rounded to `dtype`.
    """

    pairs: int
    dim: int
    writes: int
    decays: int
    dtype: torch.dtype
    bounded: bool = False
    rounds: bool = False


@dataclass(frozen=True, slots=True)
class NormShape:
    """`groups` of `size` numbers, normed each by itself, and what is rounded on the way to `dtype`; see `GatedNorm`."""

    groups: int
    size: int
    dtype: torch.dtype
    sigmoid: bool
    gate_first: bool
    rounds_input: bool
    rounds_normed: bool


class RowKernel:
    """The function that `emit` writes for a shape. Its last arguments are the first row, and the one after the last."""

    def __init__(self, emit: Callable[..., None], shape: object, width: int, work: int) -> None:
        """`work`: numbers in a row."""
        self._library = library(emit, shape, width)
        self._function: Function = self._library["run"]
        self._work = work

    def __call__(self, numbers: tuple[int, ...], rows: int) -> None:
        threads = min(torch.get_num_threads(), rows, 1 + rows * self._work // _WORK)
        TEAM.run(
            threads,
            lambda thread: self._function(*numbers, rows * thread // threads, rows * (thread + 1) // threads),
        )


def gates(shape: GatesShape) -> RowKernel:
    """See `emit_gates`. Raises LookupError where the machine has no vectors for the shape."""
    width = dividing(vector_width(), gcd(shape.dim, shape.writes, shape.decays))
    return RowKernel(emit_gates, shape, width, 2 * shape.pairs * shape.dim + 16 * shape.decays)


def gated_norm(shape: NormShape) -> RowKernel:
    """See `emit_gated_norm`. Raises LookupError where the machine has no vectors for the shape."""
    width = dividing(vector_width(), shape.size)
    return RowKernel(emit_gated_norm, shape, width, 8 * shape.groups * shape.size)


def emit_gates(module: ir.Module, name: str, shape: GatesShape, width: int) -> None:
    """Arguments of the function, in order, before those of `RowKernel`:

    joined   dtype [T, 2, pairs, dim], and the numbers from a row to the next
    write    dtype [T, writes], likewise
    inputs   dtype [T, decays], likewise
    bias     float32 [decays]
    rate     float32 [decays]
    factors  float32 [5]: of queries and of keys, the largest β, what is added to sums of squares, and the bound
    unit     float32 [T, 2, pairs, dim]: queries and keys of one length
    decay    float32 [T, decays]: e^(rate·softplus(input + bias)), or e^(bound·sigmoid(rate·(input + bias)))
    beta     float32 [T, writes]
    """
    arguments = ("joined", "@joined_row", "write", "@write_row", "inputs", "@inputs_row")
    code = KernelCode(
        module, name, (*arguments, "bias", "rate", "factors", "unit", "decay", "beta", "@begin", "@end"), width
    )
    builder, given, dtype = code.builder, code.arguments, shape.dtype
    kind = code.float_type(dtype)
    scales = [code.broadcast(code.at(given["factors"], index)) for index in range(2)]
    largest, epsilon, bound = (code.broadcast(code.at(given["factors"], index)) for index in (2, 3, 4))
    joined = shape.pairs * shape.dim

    def row_of(part: str, row: Value) -> Value:
        return code.at(given[part], code.times(row, given[f"{part}_row"]), kind)

    with code.loop(given["begin"], given["end"]) as row:
        for which, scale in enumerate(scales):
            source = code.at(row_of("joined", row), which * joined, kind)
            target = code.at(given["unit"], code.add(code.times(row, 2 * joined), which * joined))
            with code.loop(0, joined, shape.dim) as head:
                squares = code.variable(code.vector, code.constant(0.0))
                with code.loop(head, code.add(head, shape.dim), width) as at:
                    value = code.load_float(source, at, dtype)
                    squares.set(code.fma(value, value, squares.get()))
                length = code.square_root(builder.fadd(code.total(squares.get()), epsilon))
                factor = builder.fdiv(scale, length)
                with code.loop(head, code.add(head, shape.dim), width) as at:
                    value = code.load_float(source, at, dtype)
                    code.store(builder.fmul(value, factor), code.at(target, at))
        inputs, write = row_of("inputs", row), row_of("write", row)
        decay, beta = (
            code.at(given[part], code.times(row, size))
            for part, size in (("decay", shape.decays), ("beta", shape.writes))
        )
        with code.loop(0, shape.decays, width) as at:
            value = builder.fadd(code.load_float(inputs, at, dtype), code.load(code.at(given["bias"], at)))
            rate = code.load(code.at(given["rate"], at))
            if shape.bounded:
                logarithm = builder.fmul(bound, code.sigmoid(builder.fmul(rate, value)))
            else:
                logarithm = builder.fmul(rate, code.softplus(value))
            logarithm = code.as_float(logarithm, dtype) if shape.rounds else logarithm
            code.store(code.exp(logarithm), code.at(decay, at))
        with code.loop(0, shape.writes, width) as at:
            value = code.as_float(code.sigmoid(code.load_float(write, at, dtype)), dtype)
            code.store(builder.fmul(value, largest), code.at(beta, at))
    code.end()


def emit_gated_norm(module: ir.Module, name: str, shape: NormShape, width: int) -> None:
    """Arguments of the function, in order, before those of `RowKernel`:

    values  float32 [T, groups, size]; they are lost
    gate    dtype [T, groups, size], and the numbers from a row to the next
    weight  float32 [groups, size]
    epsilon float32 [1]
    out     dtype [T, groups, size]
    """
    code = KernelCode(
        module, name, ("values", "gate", "@gate_row", "weight", "epsilon", "out", "@begin", "@end"), width
    )
    builder, given, dtype = code.builder, code.arguments, shape.dtype
    kind = code.float_type(dtype)
    count = shape.groups * shape.size
    epsilon = code.broadcast(given["epsilon"])

    def gate_at(gates: Value, at: Value) -> Value:
        value = code.load_float(gates, at, dtype)
        gate = code.sigmoid(value)
        return gate if shape.sigmoid else builder.fmul(value, gate)

    def rounded(value: Value, if_so: bool) -> Value:
        return code.as_float(value, dtype) if if_so else value

    with code.loop(given["begin"], given["end"]) as row:
        values = code.at(given["values"], code.times(row, count))
        gates = code.at(given["gate"], code.times(row, given["gate_row"]), kind)
        out = code.at(given["out"], code.times(row, count), kind)
        with code.loop(0, count, shape.size) as group:
            squares = code.variable(code.vector, code.constant(0.0))
            with code.loop(group, code.add(group, shape.size), width) as at:
                value = rounded(code.load(code.at(values, at)), shape.rounds_input)
                if shape.gate_first:
                    value = builder.fmul(value, gate_at(gates, at))
                code.store(value, code.at(values, at))
                squares.set(code.fma(value, value, squares.get()))
            mean = builder.fdiv(code.total(squares.get()), code.constant(shape.size))
            length = code.square_root(builder.fadd(mean, epsilon))
            factor = builder.fdiv(code.constant(1.0), length)
            with code.loop(group, code.add(group, shape.size), width) as at:
                value = rounded(builder.fmul(code.load(code.at(values, at)), factor), shape.rounds_normed)
                value = builder.fmul(value, code.load(code.at(given["weight"], at)))
                value = rounded(value, shape.rounds_normed)
                if not shape.gate_first:
                    value = builder.fmul(value, gate_at(gates, at))
                code.store_float(value, out, at, dtype)
    code.end()
