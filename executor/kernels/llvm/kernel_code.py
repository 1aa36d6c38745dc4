"""A small vocabulary over LLVM's builder: loops, variables, vectors of float32.

Kernels are written with it when the shapes of a model are known, so that every bound except the number of rows and the
length of a context is a constant of the code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from llvmlite import ir


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


F32 = ir.FloatType()
BF16 = _BFloat()
F16 = ir.HalfType()
I1 = ir.IntType(1)
I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
POINTER = ir.PointerType()

Value = Any

_LOG2_E = 1.4426950408889634
_LN_2_HIGH, _LN_2_LOW = 0.693359375, -2.12194440e-4
# exp(r) - 1 - r over r² for |r| ≤ ln(2) / 2 (Cephes, expf), highest power first.
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# The range of `KernelCode.exp`.
_EXP_MIN, _EXP_MAX = -87.0, 88.0
# Added to a small number, this leaves no bits of it below 1.
_ROUNDING = 1.5 * 2.0**23
# (ln(1 + r) - r + r²/2) / r³ for sqrt(1/2) ≤ 1 + r ≤ sqrt(2) (Cephes, logf), highest power first.
_LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_ROOT_OF_HALF_BITS = 0x3F3504F3


class Variable:
    """A value that loops change; the optimizer makes a register of it."""

    def __init__(self, code: KernelCode, kind: ir.Type, initial: Value) -> None:
        self._builder = code.builder
        with code.builder.goto_entry_block():
            self._place = code.builder.alloca(kind)
        self._kind = kind
        self.set(initial)

    def get(self) -> Value:
        return self._builder.load(self._place, typ=self._kind)

    def set(self, value: Value) -> None:
        self._builder.store(value, self._place)


class KernelCode:
    """The body of one function `name` of pointers and 64-bit numbers; `width` floats make a vector.

    `arguments`: names; those that begin with "@" are numbers, the others pointers.
    """

    def __init__(self, module: ir.Module, name: str, arguments: Sequence[str], width: int) -> None:
        kinds = [I64 if argument.startswith("@") else POINTER for argument in arguments]
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.module = module
        self.width = width
        self.vector = ir.VectorType(F32, width)
        self.integers = ir.VectorType(I32, width)
        self.arguments = {name.lstrip("@"): value for name, value in zip(arguments, self.function.args, strict=True)}

    def end(self) -> None:
        self.builder.ret_void()

    # Numbers and addresses

    def number(self, value: int | Value) -> Value:
        return ir.Constant(I64, value) if isinstance(value, int) else value

    def add(self, first: Value, *others: int | Value) -> Value:
        for other in others:
            first = self.builder.add(first, self.number(other))
        return first

    def times(self, first: Value, second: int | Value) -> Value:
        return self.builder.mul(first, self.number(second))

    def least(self, first: Value, second: int | Value) -> Value:
        second = self.number(second)
        return self.builder.select(self.builder.icmp_signed("<", first, second), first, second)

    def most(self, first: Value, second: int | Value) -> Value:
        second = self.number(second)
        return self.builder.select(self.builder.icmp_signed(">", first, second), first, second)

    def at(self, pointer: Value, index: int | Value, kind: ir.Type = F32) -> Value:
        """The address of element `index`."""
        return self.builder.gep(pointer, [self.number(index)], source_etype=kind)

    def integer(self, pointer: Value, index: Value, kind: ir.Type) -> Value:
        """An element of an array of int32 or int64, as a number."""
        number = self.builder.load(self.at(pointer, index, kind), typ=kind)
        return number if kind is I64 else self.builder.sext(number, I64)

    @contextmanager
    def loop(self, start: int | Value, stop: int | Value, step: int | Value = 1) -> Iterator[Value]:
        """Runs its body for every index from `start` to below `stop`."""
        builder = self.builder
        start, stop = self.number(start), self.number(stop)
        before = builder.block
        head, body, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(I64)
        index.add_incoming(start, before)
        builder.cbranch(builder.icmp_signed("<", index, stop), body, after)
        builder.position_at_end(body)
        yield index
        index.add_incoming(builder.add(index, self.number(step)), builder.block)
        builder.branch(head)
        builder.position_at_end(after)

    @contextmanager
    def repeat(self, goes_on: Callable[[], Value]) -> Iterator[None]:
        """Runs its body for as long as what `goes_on` writes before it is true."""
        head, body, after = (self.builder.append_basic_block(name) for name in ("head", "body", "after"))
        self.builder.branch(head)
        self.builder.position_at_end(head)
        self.builder.cbranch(goes_on(), body, after)
        self.builder.position_at_end(body)
        yield
        self.builder.branch(head)
        self.builder.position_at_end(after)

    def leading(self, first: int, stop: Value, holds: Callable[[Value], Value]) -> Value:
        """The first number from `first` on for which what `holds` writes is false, `stop` at the most."""
        number, held = self.variable(I64, self.number(first)), self.variable(I1, ir.Constant(I1, 1))
        with self.repeat(lambda: self.builder.and_(held.get(), self.builder.icmp_signed("<", number.get(), stop))):
            held.set(holds(number.get()))
            number.set(self.builder.select(held.get(), self.add(number.get(), 1), number.get()))
        return number.get()

    def variable(self, kind: ir.Type, initial: Value) -> Variable:
        return Variable(self, kind, initial)

    def array(self, kind: ir.Type, size: int) -> Value:
        """The address of an array of the function's own."""
        with self.builder.goto_entry_block():
            place = self.builder.alloca(kind, size)
            return self.builder.inttoptr(self.builder.ptrtoint(place, I64), POINTER)

    # Vectors

    def constant(self, values: float | Sequence[float]) -> Value:
        """A vector of one number in every lane, or of `width` numbers."""
        lanes = [float(values)] * self.width if isinstance(values, (int, float)) else [*values]
        return ir.Constant(self.vector, lanes)

    def load(self, pointer: Value) -> Value:
        return self.builder.load(pointer, typ=self.vector, align=4)

    def store(self, value: Value, pointer: Value) -> None:
        self.builder.store(value, pointer, align=4)

    def bits(self, number: int) -> Value:
        """A vector of one int32 in every lane."""
        return ir.Constant(self.integers, [number] * self.width)

    @staticmethod
    def float_type(dtype: torch.dtype) -> ir.Type:
        """Of a number of `dtype` in memory."""
        return {torch.float32: F32, torch.float16: F16, torch.bfloat16: I16}[dtype]

    def load_float(self, pointer: Value, index: int | Value, dtype: torch.dtype) -> Value:
        """A vector of the floats of `dtype` from `index` on in an array."""
        if dtype is torch.float32:
            return self.load(self.at(pointer, index))
        kind = self.float_type(dtype)
        return self._widened(
            self.builder.load(self.at(pointer, index, kind), typ=ir.VectorType(kind, self.width), align=2)
        )

    def store_float(self, value: Value, pointer: Value, index: int | Value, dtype: torch.dtype) -> None:
        """The reverse. Rounds half to even. A NaN stays one."""
        if dtype is torch.float32:
            self.store(value, self.at(pointer, index))
        else:
            self.builder.store(self._narrowed(value, dtype), self.at(pointer, index, self.float_type(dtype)), align=2)

    def as_float(self, value: Value, dtype: torch.dtype) -> Value:
        """The value as it is after a store in `dtype`."""
        return value if dtype is torch.float32 else self._widened(self._narrowed(value, dtype))

    def _widened(self, stored: Value) -> Value:
        builder = self.builder
        if stored.type.element is F16:
            return builder.fpext(stored, self.vector)
        return builder.bitcast(builder.shl(builder.zext(stored, self.integers), self.bits(16)), self.vector)

    def _narrowed(self, value: Value, dtype: torch.dtype) -> Value:
        builder = self.builder
        if dtype is torch.float16:
            return builder.fptrunc(value, ir.VectorType(F16, self.width))
        raw = builder.bitcast(value, self.integers)
        even = builder.and_(builder.lshr(raw, self.bits(16)), self.bits(1))
        rounded = builder.add(builder.add(raw, self.bits(0x7FFF)), even)
        # Rounding up could carry a NaN over to another number.
        quiet = builder.or_(raw, self.bits(0x400000))
        rounded = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
        return builder.trunc(builder.lshr(rounded, self.bits(16)), ir.VectorType(I16, self.width))

    def splat(self, value: Value) -> Value:
        """A vector of one scalar in every lane."""
        kind = ir.VectorType(value.type, self.width)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
        zeros = ir.Constant(self.integers, [0] * self.width)
        return self.builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)

    def below(self, count: Value) -> Value:
        """A mask of the lanes whose numbers are below `count`, a number."""
        lanes = ir.Constant(self.integers, [*range(self.width)])
        bound = self.splat(self.builder.trunc(self.least(count, self.width), I32))
        return self.builder.icmp_signed("<", lanes, bound)

    def load_some(self, pointer: Value, lanes: Value | None) -> Value:
        """As `load`, reading the masked `lanes` only, the others as 0; None for all."""
        if lanes is None:
            return self.load(pointer)
        kind = ir.FunctionType(self.vector, [POINTER, I32, ir.VectorType(ir.IntType(1), self.width), self.vector])
        load = self.intrinsic(f"llvm.masked.load.v{self.width}f32.p0", kind)
        return self.builder.call(load, [pointer, ir.Constant(I32, 4), lanes, self.constant(0.0)])

    def store_some(self, value: Value, pointer: Value, lanes: Value | None) -> None:
        """As `store`, writing the masked `lanes` only; None for all."""
        if lanes is None:
            self.store(value, pointer)
            return
        mask = ir.VectorType(ir.IntType(1), self.width)
        kind = ir.FunctionType(ir.VoidType(), [self.vector, POINTER, I32, mask])
        store = self.intrinsic(f"llvm.masked.store.v{self.width}f32.p0", kind)
        self.builder.call(store, [value, pointer, ir.Constant(I32, 4), lanes])

    def intrinsic(self, name: str, kind: ir.FunctionType) -> ir.Function:
        """LLVM's function of this name, declared once in a module."""
        declared = self.module.globals.get(name)
        return ir.Function(self.module, kind, name) if declared is None else declared

    def prefetch(self, pointer: Value, *, near: bool = False, writes: bool = False) -> None:
        """Prefetches a cache line that will be read, or written, soon: into the second cache, or the nearest."""
        kind = ir.FunctionType(ir.VoidType(), [POINTER, I32, I32, I32])
        numbers = [ir.Constant(I32, value) for value in (int(writes), 3 if near else 2, 1)]
        self.builder.call(self.intrinsic("llvm.prefetch.p0", kind), [pointer, *numbers])

    def add_pairs(self, first: Value, second: Value, total: Value) -> Value:
        """`total` plus, in each lane, the products of the lane's two numbers of bfloat16: vectors of 32 bits a lane."""
        pairs = ir.VectorType(BF16, 2 * self.width)
        kind = ir.FunctionType(self.vector, [self.vector, pairs, pairs])
        add = self.intrinsic(f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.width}", kind)
        return self.builder.call(add, [total, *(self.builder.bitcast(given, pairs) for given in (first, second))])

    def broadcast(self, pointer: Value) -> Value:
        return self.splat(self.builder.load(pointer, typ=F32, align=4))

    def broadcast_float(self, pointer: Value, index: int | Value, dtype: torch.dtype) -> Value:
        """One float of `dtype` of an array, in every lane."""
        kind = self.float_type(dtype)
        value = self.splat(self.builder.load(self.at(pointer, index, kind), typ=kind, align=2))
        return value if dtype is torch.float32 else self._widened(value)

    def lane(self, value: Value, index: int) -> Value:
        return self.builder.extract_element(value, ir.Constant(I32, index))

    def shuffle(self, first: Value, second: Value, order: Sequence[int]) -> Value:
        return self.builder.shuffle_vector(first, second, ir.Constant(self.integers, [*order]))

    def fma(self, first: Value, second: Value, third: Value) -> Value:
        """first · second + third, rounded once."""
        return self._call("llvm.fma", first, second, third)

    def square_root(self, value: Value) -> Value:
        return self._call("llvm.sqrt", value)

    def _call(self, name: str, *values: Value) -> Value:
        """An intrinsic over vectors, lane by lane."""
        kind = ir.FunctionType(self.vector, [self.vector] * len(values))
        return self.builder.call(self.intrinsic(f"{name}.v{self.width}f32", kind), values)

    def maximum(self, first: Value, second: Value) -> Value:
        return self.builder.select(self.builder.fcmp_ordered(">", first, second), first, second)

    def minimum(self, first: Value, second: Value) -> Value:
        return self.builder.select(self.builder.fcmp_ordered("<", first, second), first, second)

    def magnitude(self, value: Value) -> Value:
        return self._call("llvm.fabs", value)

    def rounded(self, value: Value) -> Value:
        """The nearest integers, half to even, as int32."""
        return self.builder.fptosi(self._call("llvm.rint", value), self.integers)

    def largest(self, values: Sequence[Value]) -> Value:
        """The largest of the vectors, lane by lane."""
        return reduce(self.maximum, values)

    def any_lane(self, mask: Value) -> Value:
        """Whether a mask has a lane."""
        word = self.builder.bitcast(mask, ir.IntType(self.width))
        return self.builder.icmp_unsigned("!=", word, ir.Constant(word.type, 0))

    def folded(self, value: Value, period: int, combine: Any) -> Value:
        """Combines all lanes that are a multiple of `period` apart; each of them then holds the result."""
        distance = self.width // 2
        while distance >= period:
            order = [(lane + distance) % self.width for lane in range(self.width)]
            value = combine(value, self.shuffle(value, value, order))
            distance //= 2
        return value

    def total(self, value: Value) -> Value:
        """The sum of the lanes, in every lane."""
        return self.folded(value, 1, self.builder.fadd)

    def sums(self, vectors: Sequence[Value]) -> Value:
        """The sums of the lanes of each of `width` vectors, as one vector: transposed and added by halves."""
        partial = [*vectors]
        half = 1
        while len(partial) > 1:
            # Lanes come in runs of `half` that belong to one vector; the runs of two vectors are interleaved and added.
            low, high = [], []
            for lane in range(0, self.width, 2 * half):
                low += [*range(lane, lane + half), *range(self.width + lane, self.width + lane + half)]
                high += [
                    *range(lane + half, lane + 2 * half),
                    *range(self.width + lane + half, self.width + lane + 2 * half),
                ]
            partial = [
                self.builder.fadd(self.shuffle(first, second, low), self.shuffle(first, second, high))
                for first, second in zip(partial[::2], partial[1::2], strict=True)
            ]
            half *= 2
        return partial[0]

    def pairwise(self, vectors: Sequence[Value]) -> Value:
        """The sum of a power of two of vectors, in the order of `sums`: neighbours first, and then their sums."""
        partial = [*vectors]
        while len(partial) > 1:
            partial = [self.builder.fadd(*pair) for pair in zip(partial[::2], partial[1::2], strict=True)]
        return partial[0]

    def halved(self, vectors: Sequence[Value]) -> Value:
        """The sum of a power of two of vectors, in the order of `folded`: those half of them apart first."""
        partial = [*vectors]
        while len(partial) > 1:
            half = len(partial) // 2
            partial = [self.builder.fadd(*pair) for pair in zip(partial[:half], partial[half:], strict=True)]
        return partial[0]

    def transposed(self, vectors: Sequence[Value]) -> list[Value]:
        """The vectors of lane 0, lane 1 and so on of each of `width` vectors."""
        rows, lanes = [*vectors], range(self.width)
        step = 1
        while step < self.width:
            low = [lane if not lane & step else self.width + lane - step for lane in lanes]
            high = [lane + step if not lane & step else self.width + lane for lane in lanes]
            for row in lanes:
                if not row & step:
                    pair = rows[row], rows[row + step]
                    rows[row], rows[row + step] = self.shuffle(*pair, low), self.shuffle(*pair, high)
            step *= 2
        return rows

    def exp_below_zero(self, *values: Value) -> list[Value]:
        """`exp` of vectors whose lanes are 0 or less: the same bits in fewer instructions, which take turns.

        Each waits for the one before, and so a processor is not left without any.
        """
        builder = self.builder
        # In the lowest bits of the sum is the nearest integer.
        turns = [builder.fmul(value, self.constant(_LOG2_E)) for value in values]
        turns = [builder.fadd(turn, self.constant(_ROUNDING)) for turn in turns]
        wholes = [builder.fsub(turn, self.constant(_ROUNDING)) for turn in turns]
        series = self._exp_series(values, wholes)
        exponents = [builder.shl(builder.bitcast(turn, self.integers), self.bits(23)) for turn in turns]
        powers = [
            builder.bitcast(builder.add(builder.bitcast(one, self.integers), exponent), self.vector)
            for one, exponent in zip(series, exponents, strict=True)
        ]
        # A NaN stays one.
        stay = [builder.fcmp_unordered(">=", value, self.constant(_EXP_MIN)) for value in values]
        return [builder.select(*pair, self.constant(0.0)) for pair in zip(stay, powers, strict=True)]

    def _exp_series(self, values: Sequence[Value], wholes: Sequence[Value]) -> list[Value]:
        """e^value over 2^whole of each."""
        rests = [
            self.fma(whole, self.constant(-_LN_2_HIGH), value) for value, whole in zip(values, wholes, strict=True)
        ]
        rests = [self.fma(whole, self.constant(-_LN_2_LOW), rest) for rest, whole in zip(rests, wholes, strict=True)]
        series = [self.constant(_EXP[0])] * len(rests)
        for coefficient in _EXP[1:]:
            pairs = zip(series, rests, strict=True)
            series = [self.fma(one, rest, self.constant(coefficient)) for one, rest in pairs]
        series = [self.builder.fmul(one, rest) for one, rest in zip(series, rests, strict=True)]
        series = [self.fma(one, rest, rest) for one, rest in zip(series, rests, strict=True)]
        return [self.builder.fadd(one, self.constant(1.0)) for one in series]

    def exp(self, value: Value) -> Value:
        """e to the power of each lane, within two units in the last place.

        It is 0 below -87, where it would be denormal, and e^88 above 88.
        """
        builder = self.builder
        vanishes = builder.fcmp_ordered("<", value, self.constant(_EXP_MIN))
        above = self.maximum(value, self.constant(_EXP_MIN))
        bounded = self.minimum(above, self.constant(_EXP_MAX))
        whole = self._call("llvm.rint", builder.fmul(bounded, self.constant(_LOG2_E)))
        series = self._exp_series([bounded], [whole])[0]
        exponent = builder.add(builder.fptosi(whole, self.integers), ir.Constant(self.integers, [127] * self.width))
        scale = builder.bitcast(builder.shl(exponent, ir.Constant(self.integers, [23] * self.width)), self.vector)
        power = builder.select(vanishes, self.constant(0.0), builder.fmul(series, scale))
        return builder.select(builder.fcmp_unordered("uno", value, value), value, power)

    def sigmoid(self, value: Value) -> Value:
        """1 / (1 + e^-x) of each lane."""
        one = self.constant(1.0)
        return self.builder.fdiv(one, self.builder.fadd(one, self.exp(self.builder.fneg(value))))

    def softplus(self, value: Value) -> Value:
        """ln(1 + e^x) of each lane; x above 20, as in torch."""
        builder, one, limit = self.builder, self.constant(1.0), self.constant(20.0)
        power = self.exp(self.minimum(value, limit))
        # ln(1 + u) is u·ln(w) / (w - 1) with w = 1 + u as it was rounded (Kahan).
        whole = builder.fadd(one, power)
        rest = builder.fsub(whole, one)
        small = builder.fcmp_ordered("==", rest, self.constant(0.0))
        series = builder.fdiv(builder.fmul(power, self.log(whole)), builder.select(small, one, rest))
        result = builder.select(small, power, series)
        return builder.select(builder.fcmp_ordered(">", value, limit), value, result)

    def log(self, value: Value) -> Value:
        """The natural logarithm of each lane, within two units in the last place; for normal positive numbers only."""
        builder = self.builder

        def bits(number: int) -> Value:
            return ir.Constant(self.integers, [number] * self.width)

        # Mantissas are from sqrt(1/2) to sqrt(2), so that the series converges on either side of 1.
        raw = builder.sub(builder.bitcast(value, self.integers), bits(_ROOT_OF_HALF_BITS))
        exponent = builder.sitofp(builder.ashr(raw, bits(23)), self.vector)
        mantissa = builder.add(builder.and_(raw, bits(0x7FFFFF)), bits(_ROOT_OF_HALF_BITS))
        rest = builder.fsub(builder.bitcast(mantissa, self.vector), self.constant(1.0))
        series = self.constant(_LOG[0])
        for coefficient in _LOG[1:]:
            series = self.fma(series, rest, self.constant(coefficient))
        square = builder.fmul(rest, rest)
        series = builder.fmul(builder.fmul(series, rest), square)
        series = self.fma(exponent, self.constant(_LN_2_LOW), series)
        series = self.fma(square, self.constant(-0.5), series)
        return self.fma(exponent, self.constant(_LN_2_HIGH), builder.fadd(rest, series))
