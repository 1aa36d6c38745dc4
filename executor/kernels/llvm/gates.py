"""The norm after the recurrence of a layer, as LLVM code for a CPU: each row by itself. See `GatedNorm`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from llvmlite import ir

from qpdsl.executor.kernels.llvm.compile import TEAM, Function, vector_width
from qpdsl.executor.kernels.llvm.forward import dividing
from qpdsl.executor.kernels.llvm.kernel_code import KernelCode, Value
from qpdsl.executor.kernels.llvm.recurrence import library

# Numbers that a thread computes at least.
_WORK = 1 << 16


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


def gated_norm(shape: NormShape) -> RowKernel:
    """See `emit_gated_norm`. Raises LookupError where the machine has no vectors for the shape."""
    width = dividing(vector_width(), shape.size)
    return RowKernel(emit_gated_norm, shape, width, 8 * shape.groups * shape.size)


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
    given, kind, count = code.arguments, code.float_type(shape.dtype), shape.groups * shape.size
    epsilon = code.broadcast(given["epsilon"])
    with code.loop(given["begin"], given["end"]) as row, code.loop(0, count, shape.size) as group:
        values = code.at(given["values"], code.add(code.times(row, count), group))
        gates = code.at(given["gate"], code.add(code.times(row, given["gate_row"]), group), kind)
        out = code.at(given["out"], code.add(code.times(row, count), group), kind)
        norm_group(code, shape, values, gates, code.at(given["weight"], group), epsilon, out)
    code.end()


def norm_group(
    code: KernelCode, shape: NormShape, values: Value, gates: Value, weight: Value, epsilon: Value, out: Value
) -> None:
    """The code of one group: `values` and `weight` float32 [size], `gates` and `out` dtype [size].

    `epsilon` is a vector. The values are lost.
    """
    builder, dtype = code.builder, shape.dtype

    def gate_at(at: Value) -> Value:
        value = code.load_float(gates, at, dtype)
        gate = code.sigmoid(value)
        return gate if shape.sigmoid else builder.fmul(value, gate)

    def rounded(value: Value, if_so: bool) -> Value:
        return code.as_float(value, dtype) if if_so else value

    squares = code.variable(code.vector, code.constant(0.0))
    with code.loop(0, shape.size, code.width) as at:
        value = rounded(code.load(code.at(values, at)), shape.rounds_input)
        if shape.gate_first:
            value = builder.fmul(value, gate_at(at))
        code.store(value, code.at(values, at))
        squares.set(code.fma(value, value, squares.get()))
    mean = builder.fdiv(code.total(squares.get()), code.constant(shape.size))
    length = code.square_root(builder.fadd(mean, epsilon))
    factor = builder.fdiv(code.constant(1.0), length)
    with code.loop(0, shape.size, code.width) as at:
        value = rounded(builder.fmul(code.load(code.at(values, at)), factor), shape.rounds_normed)
        value = builder.fmul(value, code.load(code.at(weight, at)))
        value = rounded(value, shape.rounds_normed)
        if not shape.gate_first:
            value = builder.fmul(value, gate_at(at))
        code.store_float(value, out, at, dtype)
