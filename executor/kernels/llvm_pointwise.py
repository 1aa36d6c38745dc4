"""The small operators of a decoder layer on a CPU as LLVM code: RMS norm and the gated activation."""

from __future__ import annotations

from typing import Literal

from llvmlite import ir

from qpdsl.executor.kernels.llvm_builder import Code, Value

Activation = Literal["silu", "gelu_tanh"]

# gelu(x) ≈ x · sigmoid(2 · sqrt(2 / π) · (x + 0.044715 x³)) (Hendrycks and Gimpel, 2016)
_GELU, _CUBE = 1.5957691216057308, 0.044715


def emit_norm(module: ir.Module, name: str, size: int, width: int, epsilon: float) -> None:
    """RMS norm. Arguments: hidden float32 [T, size]; weight [size]; out [T, size]; T."""
    code = Code(module, name, ("hidden", "weight", "out", "@count"), width)
    builder, given = code.builder, code.given
    with code.loop(0, given["count"]) as row:
        start = code.times(row, size)
        hidden, out = code.at(given["hidden"], start), code.at(given["out"], start)
        # Two sums, that one addition need not wait for the other.
        sums = [code.variable(code.vector, code.constant(0.0)) for _ in range(2 if size % (2 * width) == 0 else 1)]
        with code.loop(0, size, width * len(sums)) as at:
            for index, total in enumerate(sums):
                value = code.load(code.at(hidden, code.add(at, index * width)))
                total.set(code.fma(value, value, total.get()))
        squares = sums[0].get()
        for total in sums[1:]:
            squares = builder.fadd(squares, total.get())
        mean = builder.fmul(code.total(squares), code.constant(1.0 / size))
        root = code.square_root(builder.fadd(mean, code.constant(epsilon)))
        scale = builder.fdiv(code.constant(1.0), root)
        with code.loop(0, size, width) as at:
            value = builder.fmul(code.load(code.at(hidden, at)), scale)
            code.store(builder.fmul(value, code.load(code.at(given["weight"], at))), code.at(out, at))
    code.end()


def emit_gate(module: ir.Module, name: str, size: int, width: int, activation: Activation) -> None:
    """act(gate) · up. Arguments: widened float32 [T, 2 * size], gate first; out [T, size]; T."""
    code = Code(module, name, ("widened", "out", "@count"), width)
    builder, given = code.builder, code.given
    with code.loop(0, given["count"]) as row:
        start = code.times(row, size)
        gates = code.at(given["widened"], code.times(start, 2))
        ups, out = code.at(gates, size), code.at(given["out"], start)
        with code.loop(0, size, width) as at:
            gate = code.load(code.at(gates, at))
            activated = builder.fmul(gate, _sigmoid(code, _bent(code, gate, activation)))
            code.store(builder.fmul(activated, code.load(code.at(ups, at))), code.at(out, at))
    code.end()


def _bent(code: Code, gate: Value, activation: Activation) -> Value:
    if activation == "silu":
        return gate
    square = code.builder.fmul(gate, gate)
    inner = code.fma(square, code.constant(_CUBE), code.constant(1.0))
    return code.builder.fmul(code.builder.fmul(gate, inner), code.constant(_GELU))


def _sigmoid(code: Code, value: Value) -> Value:
    one = code.constant(1.0)
    power = code.exp(code.builder.fneg(value))
    return code.builder.fdiv(one, code.builder.fadd(one, power))
