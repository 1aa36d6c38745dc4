"""Gumbel noise as LLVM code: for many ids at once within a bound, and for one id as it is defined.

The random words are those of `plain/philox.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from qpdsl.executor.kernels.llvm.jit.builder import I32, I64, KernelCode, Value
from qpdsl.executor.kernels.plain.philox import MULTIPLIERS, ROUNDS, WEYL

F64 = ir.DoubleType()

# More than twice the error of the float32 noise, plus `WIDEST_GAP`.
SLACK = 2e-2
# The part of a large score that float32 loses when the noise is added.
ROUNDING = 2.0**-22
# Ids whose exact scores lie so near to the best have noisy float32 scores within `SLACK` of the best of those.
WIDEST_GAP = 1e-2
# Below this u, -ln(1 - u) is computed as a series; above, 1 - u has bits enough for a logarithm.
_SERIES = 0.25


def natural_log(code: KernelCode, value: Value) -> Value:
    """The natural logarithm of a float64."""
    intrinsic = code.module.declare_intrinsic("llvm.log", [F64], ir.FunctionType(F64, [F64]))
    return code.builder.call(intrinsic, [value])


def least_candidate(code: KernelCode, highest: Value) -> Value:
    """The float32 score, in every lane, from which on an id could be first or second; `highest`: the best of them."""
    slack = code.fma(code.magnitude(highest), code.constant(ROUNDING), code.constant(SLACK))
    return code.builder.fsub(highest, slack)


class NoiseCode:
    """The noise of one draw, of its key and its position, int64."""

    def __init__(self, code: KernelCode, key: Value, position: Value) -> None:
        self._code = code
        builder = code.builder
        self._position = builder.trunc(position, I32)
        halves = (builder.trunc(key, I32), builder.trunc(builder.lshr(key, code.number(32)), I32))
        pairs = list(zip(halves, WEYL, strict=True))
        self._round_keys = [
            [builder.add(half, ir.Constant(I32, step * weyl & 0xFFFFFFFF)) for half, weyl in pairs]
            for step in range(ROUNDS)
        ]

    def near(self, blocks: Value) -> list[Value]:
        """Noise float32 within the slack, of the ids of `width` blocks of four: four vectors, of a quarter each."""
        code = self._code
        return [self._near(word) for word in _in_order(code, self._philox(blocks, code.splat(self._position)))]

    def exact(self, token: Value) -> Value:
        """The noise float64 of one id int32: -ln(-ln(1 - u)), where 1 - u is exact."""
        code, builder = self._code, self._code.builder
        words = self._philox(builder.lshr(token, ir.Constant(I32, 2)), self._position)
        which = builder.and_(token, ir.Constant(I32, 3))
        word = words[0]
        for index in range(1, 4):
            word = builder.select(builder.icmp_unsigned("==", which, ir.Constant(I32, index)), words[index], word)
        rest = builder.uitofp(builder.xor(word, ir.Constant(I32, -1)), F64)
        above = builder.fmul(builder.fadd(rest, ir.Constant(F64, 0.5)), ir.Constant(F64, 2.0**-32))
        return builder.fneg(natural_log(code, builder.fneg(natural_log(code, above))))

    def _near(self, word: Value) -> Value:
        code, builder = self._code, self._code.builder
        ones = ir.Constant(code.integers, [-1] * code.width)

        def fraction(bits: Value) -> Value:
            return builder.fmul(builder.fadd(builder.uitofp(bits, code.vector), code.constant(0.5)), unit)

        unit = code.constant(2.0**-32)
        below, above = fraction(word), fraction(builder.xor(word, ones))
        series = code.constant(0.25)
        for coefficient in (1 / 3, 0.5, 1.0):
            series = code.fma(series, below, code.constant(coefficient))
        small = builder.fcmp_ordered("<", below, code.constant(_SERIES))
        inner = builder.select(small, builder.fmul(series, below), builder.fneg(code.log(above)))
        return builder.fneg(code.log(inner))

    def _philox(self, c0: Value, c1: Value) -> list[Value]:
        """The four words of the blocks with counters (c0, c1, 0, 0): integers of 32 bits or vectors of them."""
        code, builder, kind = self._code, self._code.builder, c0.type
        vector = isinstance(kind, ir.VectorType)
        wide = ir.VectorType(I64, kind.count) if vector else I64

        def constant(of: ir.Type, value: int) -> Value:
            return ir.Constant(of, [value] * kind.count if vector else value)

        def product(value: Value, multiplier: int) -> tuple[Value, Value]:
            full = builder.mul(builder.zext(value, wide), constant(wide, multiplier))
            return builder.trunc(builder.lshr(full, constant(wide, 32)), kind), builder.trunc(full, kind)

        c2 = c3 = constant(kind, 0)
        for keys in self._round_keys:
            k0, k1 = (code.splat(key) if vector else key for key in keys)
            (high0, low0), (high1, low1) = product(c0, MULTIPLIERS[0]), product(c2, MULTIPLIERS[1])
            c0, c1 = builder.xor(builder.xor(high1, c1), k0), low1
            c2, c3 = builder.xor(builder.xor(high0, c3), k1), low0
        return [c0, c1, c2, c3]


def _in_order(code: KernelCode, words: Sequence[Value]) -> list[Value]:
    """Vectors of the words of neighbouring ids, from vectors of each block's first, second, third and fourth words."""

    def interleaved(first: Value, second: Value) -> list[Value]:
        pairs = [lane for index in range(code.width) for lane in (index, code.width + index)]
        return [code.shuffle(first, second, pairs[: code.width]), code.shuffle(first, second, pairs[code.width :])]

    even, odd = interleaved(words[0], words[2]), interleaved(words[1], words[3])
    return [vector for low, high in zip(even, odd, strict=True) for vector in interleaved(low, high)]
