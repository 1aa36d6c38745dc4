"""What a decoder layer computes between its matrix products and its attention, as LLVM code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llvmlite import ir

from qpdsl.executor.kernels.llvm.cache import KEY, VALUE, Cache, HeadShape
from qpdsl.executor.kernels.llvm.jit.builder import I64, KernelCode, Value

Activation = Literal["silu", "gelu_tanh"]

# gelu(x) ≈ x · sigmoid(2 · sqrt(2 / π) · (x + 0.044715 x³)) (Hendrycks and Gimpel, 2016)
_GELU, _CUBE = 1.5957691216057308, 0.044715


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMS norms of queries and keys: over each head, or over all query heads and over all key heads (`whole`)."""

    epsilon: float
    whole: bool = False


def emit_norm(module: ir.Module, name: str, size: int, width: int, epsilon: float, *, add: bool = False) -> None:
    """RMS norm of each row, or with `add`, what is in `out` plus `factor` times it.

    Arguments: hidden float32 [T, size]; weight float32 [size]; out float32 [T, size]; T; factor float32 [1].
    """
    code = KernelCode(module, name, ("hidden", "weight", "out", "@count", "factor"), width)
    builder, arguments = code.builder, code.arguments
    with code.loop(0, arguments["count"]) as row:
        start = code.times(row, size)
        hidden, out = code.at(arguments["hidden"], start), code.at(arguments["out"], start)
        scale = _norm_scale(code, _squares(code, hidden, size), size, epsilon)
        with code.loop(0, size, width) as at:
            value = builder.fmul(code.load(code.at(hidden, at)), scale)
            value = builder.fmul(value, code.load(code.at(arguments["weight"], at)))
            if add:
                value = code.fma(value, code.broadcast(arguments["factor"]), code.load(code.at(out, at)))
            code.store(value, code.at(out, at))
    code.end()


def _squares(code: KernelCode, numbers: Value, size: int) -> Value:
    """The squares of `size` numbers, summed lane by lane."""
    # Two sums, so that one addition need not wait for the other.
    sums = [code.variable(code.vector, code.constant(0.0)) for _ in range(2 if size % (2 * code.width) == 0 else 1)]
    with code.loop(0, size, code.width * len(sums)) as at:
        for index, total in enumerate(sums):
            value = code.load(code.at(numbers, code.add(at, index * code.width)))
            total.set(code.fma(value, value, total.get()))
    squares = sums[0].get()
    for total in sums[1:]:
        squares = code.builder.fadd(squares, total.get())
    return squares


def emit_gate(module: ir.Module, name: str, size: int, width: int, activation: Activation) -> None:
    """act(gate) · up.

    Arguments: widened float32 [T, 2 * size], gate first; out float32 [T, row], of which the first `size` numbers of
    each row are written; row; T.
    """
    code = KernelCode(module, name, ("widened", "out", "@row", "@count"), width)
    builder, arguments = code.builder, code.arguments
    with code.loop(0, arguments["count"]) as row:
        gates = code.at(arguments["widened"], code.times(row, 2 * size))
        ups, out = code.at(gates, size), code.at(arguments["out"], code.times(row, arguments["row"]))
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


def emit_store(module: ir.Module, name: str, shape: HeadShape, width: int, norm: HeadNorm | None) -> None:
    """Rotates queries and keys by their positions, in place, and stores keys and values in the pages of a layer.

    Arguments of the function, in order:
    joined     float32 [T, row], the joined projection first in each row
    row        numbers from a row of `joined` to the next
    rotations  float32 [P, dim], the cosine and the sine of each pair by position
    positions  int64 [T]
    slots      int64 [T]
    rows       the rows of the cache
    weights    float32 [(fold + 1) * kv_heads, dim] of the norms of queries and keys; not read without `norm`
    count      T
    layer
    """
    code = KernelCode(
        module,
        name,
        ("joined", "@row", "rotations", "positions", "slots", "rows", "weights", "@count", "@layer"),
        width,
    )
    builder, arguments = code.builder, code.arguments
    cache = Cache(code, shape.cache, arguments["rows"])
    parts = range(0, shape.dim, width)
    heads, keys = shape.fold * shape.kv_heads, shape.kv_heads
    with code.loop(0, arguments["count"]) as row:
        position = code.integer(arguments["positions"], row, I64)
        joined = code.at(arguments["joined"], code.times(row, arguments["row"]))
        slot = code.integer(arguments["slots"], row, I64)
        page_size = code.number(shape.page_size)
        page = cache.page(builder.sdiv(slot, page_size), arguments["layer"])
        token = builder.srem(slot, page_size)
        angles = code.at(arguments["rotations"], code.times(position, shape.dim))
        query, key = _Rotation(code, shape.dim, norm, angles), _Rotation(code, shape.dim, norm, angles)
        if norm is not None and norm.whole:
            for rotation, first, count in ((query, 0, heads), (key, heads, keys)):
                size = count * shape.dim
                squares = _squares(code, code.at(joined, first * shape.dim), size)
                rotation.scale = _norm_scale(code, squares, size, norm.epsilon)
        with code.loop(0, heads) as head:
            target = code.at(joined, code.times(head, shape.dim))
            for part, value in zip(parts, query.emit(joined, head), strict=True):
                code.store(value, code.at(target, part))
        with code.loop(0, keys) as head:
            cache.store(page, token, KEY, head, key.emit(joined, code.add(head, heads)))
            source = code.at(joined, code.times(code.add(head, heads + keys), shape.dim))
            cache.store(page, token, VALUE, head, [code.load(code.at(source, part)) for part in parts])
    code.end()


class _Rotation:
    """The code of the rotary embedding of one token's heads: pairs (a, b) become (a·cos - b·sin, b·cos + a·sin).

    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, section 3.4.
    """

    def __init__(self, code: KernelCode, dim: int, norm: HeadNorm | None, angles: Value) -> None:
        """`angles`: the address of the cosine and the sine of each pair."""
        self._code, self._dim, self._norm = code, dim, norm
        # One over the root mean square of all heads, where the norm is over all.
        self.scale: Value | None = None
        self._parts = range(0, dim, code.width)
        lanes = range(code.width)
        signs = code.constant([-1.0 if lane % 2 == 0 else 1.0 for lane in lanes])
        pairs = [code.load(code.at(angles, part)) for part in self._parts]
        self._cosines = [code.shuffle(pair, pair, [lane & ~1 for lane in lanes]) for pair in pairs]
        sines = [code.shuffle(pair, pair, [lane | 1 for lane in lanes]) for pair in pairs]
        self._sines = [code.builder.fmul(sine, signs) for sine in sines]
        self._swapped = [lane ^ 1 for lane in lanes]

    def emit(self, joined: Value, head: Value) -> list[Value]:
        """The vectors of a head of `joined`, normalized where there is a norm, and rotated."""
        code, builder = self._code, self._code.builder
        offset = code.times(head, self._dim)
        values = [code.load(code.at(joined, code.add(offset, part))) for part in self._parts]
        if self._norm is not None:
            scale = self.scale
            if scale is None:
                squares = builder.fmul(values[0], values[0])
                for value in values[1:]:
                    squares = code.fma(value, value, squares)
                scale = _norm_scale(code, squares, self._dim, self._norm.epsilon)
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
