"""LLVM code that reads and writes the rows of a KV cache (see `KVRows`): floats, or eight or four bits with scales.

Where values have four bits, keys have eight: `kinds` says what each of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from llvmlite import ir

from qpdsl.executor.kernels.data.int4_groups import FACTOR_BYTES, LIMIT, MOST, group_of
from qpdsl.executor.kernels.data.kv_rows import LARGEST, SMALLEST, KVShape, RowKind, head_bytes, scale_count
from qpdsl.executor.kernels.llvm.kernel_code import F16, F32, I8, I32, KernelCode, Value

# Keys come first in a row, then values.
KEY, VALUE = 0, 1

# e4m3 has 3 bits of mantissa and a bias of 7, float32 23 and 127.
_SHIFT, _BIAS = 23 - 3, 127 - 7
_MIN_NORMAL = 2.0**-6
_SIGN = 0x80


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Rows of pages of `page_size` tokens, each with the keys and the values of one layer: see `HeadShape`."""

    kept: KVShape
    page_size: int
    kind: RowKind = "plain"
    dtype: torch.dtype = torch.float32
    stride: int | None = None

    @property
    def kv_heads(self) -> int:
        return self.kept.kv_heads

    @property
    def dim(self) -> int:
        return self.kept.key

    @property
    def row_bytes(self) -> int:
        """Bytes from one row to the next."""
        return self.stride or self.kept.row_bytes(self.kind, self.dtype, self.page_size)

    @property
    def kinds(self) -> tuple[RowKind, RowKind]:
        """What the numbers of keys and of values are."""
        return ("int8" if self.kind == "int4" else self.kind), self.kind

    @property
    def head_bytes(self) -> tuple[int, int]:
        """Bytes from a key to that of the next head, and from a value, without the scales of eight bits."""
        if self.kept.is_even:
            return head_bytes(self.kind, self.dtype, self.dim)
        return self.kept.key * self.dtype.itemsize, self.kept.value * self.dtype.itemsize

    @property
    def token_bytes(self) -> int:
        """Bytes from a token's key to the next token's."""
        return self.kv_heads * sum(self.head_bytes[: 1 if self.kept.latent else 2])


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The heads of a model: `fold` query heads for each of `kv_heads`, `dim` wide, KV in pages of `page_size` tokens.

    A row of the joined projection has the queries [fold, kv_heads, dim], then the keys and then the values, both
    [kv_heads, dim]. `kind`: what the cache holds, of floats with their `dtype`. `value`: the width of values where it
    is another one; `latent`: as in `KVShape`. `stride`: the bytes from one row to the next where others lie between.
    """

    fold: int
    kv_heads: int
    dim: int
    page_size: int
    kind: RowKind = "plain"
    dtype: torch.dtype = torch.float32
    value: int | None = None
    latent: bool = False
    stride: int | None = None

    @property
    def value_dim(self) -> int:
        return self.dim if self.value is None else self.value

    @property
    def cache(self) -> CacheShape:
        kept = KVShape(self.kv_heads, self.dim, self.value_dim, self.latent)
        return CacheShape(kept, self.page_size, self.kind, self.dtype, self.stride)

    @property
    def queries(self) -> int:
        return self.fold * self.kv_heads * self.dim

    @property
    def attended(self) -> int:
        return self.fold * self.kv_heads * self.value_dim

    @property
    def joined(self) -> int:
        return (self.fold + 2) * self.kv_heads * self.dim

    def block(self, width: int) -> int:
        """How many query heads are scored together: `fold` rounded up to a power of two, at most a vector's width."""
        return min(width, 1 << (self.fold - 1).bit_length())


class Cache:
    """Code over the rows at an address."""

    def __init__(self, code: KernelCode, shape: CacheShape, rows: Value) -> None:
        self._code, self._shape, self._rows = code, shape, rows

    def page(self, page: Value, layer: Value) -> Value:
        """The address of one layer of a page."""
        row = self._code.add(page, layer)
        return self._code.at(self._rows, self._code.times(row, self._shape.row_bytes), I8)

    def head(self, page: Value, token: int | Value, which: int, head: Value) -> Value:
        """The address of a token's key or value of one head."""
        code, shape = self._code, self._shape
        if shape.kept.latent:
            which = KEY
        place = code.add(code.times(head, shape.head_bytes[which]), which * shape.kv_heads * shape.head_bytes[KEY])
        return code.at(page, code.add(place, code.times(code.number(token), shape.token_bytes)), I8)

    def load(self, head: Value, which: int, part: int | Value) -> Value:
        """A vector of the numbers of a key or value from `part` on, not yet multiplied by `scale`."""
        code, builder, kind = self._code, self._code.builder, self._shape.kinds[which]
        if kind == "plain":
            return code.load_float(head, part, self._shape.dtype)
        if kind == "int4":
            return self._load_codes(head, part)
        stored = builder.load(code.at(head, part, I8), typ=ir.VectorType(I8, code.width), align=1)
        if kind == "int8":
            return builder.sitofp(builder.sext(stored, code.integers), code.vector)
        wide = builder.zext(stored, code.integers)
        sign = builder.shl(builder.and_(wide, self._bits(_SIGN)), self._bits(24))
        rest = builder.shl(builder.and_(wide, self._bits(_SIGN - 1)), self._bits(_SHIFT))
        magnitude = builder.fmul(builder.bitcast(rest, code.vector), code.constant(2.0**_BIAS))
        return builder.bitcast(builder.or_(builder.bitcast(magnitude, code.integers), sign), code.vector)

    def scale(self, page: Value, token: Value, which: int, head: Value) -> Value | None:
        """The factor of the numbers of a head; None for numbers that are loaded as they are."""
        if self._shape.kinds[which] not in LARGEST:
            return None
        return self._code.builder.load(self._scale(page, token, which, head), typ=F32, align=4)

    def store(self, page: Value, token: Value, which: int, head: Value, values: Sequence[Value]) -> None:
        """Stores the vectors of one head, in the bits that `KVRows.write` gives finite numbers."""
        code, builder, kind = self._code, self._code.builder, self._shape.kinds[which]
        target = self.head(page, token, which, head)
        if kind == "plain":
            for index, value in enumerate(values):
                code.store_float(value, target, index * code.width, self._shape.dtype)
            return
        if kind == "int4":
            size = group_of(self._shape.dim) // code.width
            for index in range(0, len(values), size):
                self._store_group(values[index : index + size], target, index * code.width)
            return
        largest = code.folded(code.largest([code.magnitude(value) for value in values]), 1, code.maximum)
        bound, zero = code.constant(LARGEST[kind]), code.constant(0.0)
        vanishes = builder.fcmp_ordered("<", largest, code.constant(SMALLEST))
        scale = builder.select(vanishes, zero, builder.fdiv(largest, bound))
        inverse = builder.select(vanishes, zero, builder.fdiv(bound, largest))
        # A NaN must stay one: comparisons drop it, but a product with zero does not.
        poison = builder.fmul(values[0], zero)
        for value in values[1:]:
            poison = builder.fadd(poison, builder.fmul(value, zero))
        scale = builder.fadd(scale, code.folded(poison, 1, builder.fadd))
        for index, value in enumerate(values):
            scaled = code.maximum(code.constant(-LARGEST[kind]), code.minimum(builder.fmul(value, inverse), bound))
            whole = code.rounded(scaled) if kind == "int8" else self._e4m3(scaled)
            narrow = builder.trunc(whole, ir.VectorType(I8, code.width))
            builder.store(narrow, code.at(target, index * code.width, I8), align=1)
        builder.store(code.lane(scale, 0), self._scale(page, token, which, head), align=4)

    def _factors(self, head: Value, part: int) -> Value:
        """The address of the scale and the minimum of the group that number `part` of a head is in."""
        dim = self._shape.dim
        return self._code.at(head, dim // 2 + part // group_of(dim) * FACTOR_BYTES, I8)

    def _load_codes(self, head: Value, part: int) -> Value:
        """Four-bit codes times their group's scale, plus its minimum: exact products, and one rounding."""
        code, builder = self._code, self._code.builder
        lanes = range(code.width)
        # Eight codes are the bits of one int32, those of the first number lowest.
        whole = ir.IntType(min(32, 4 * code.width))
        words = ir.VectorType(whole, max(1, code.width // 8))
        stored = builder.load(code.at(head, part // 2, I8), typ=words, align=1)
        order = ir.Constant(code.integers, [lane // 8 for lane in lanes])
        spread_out = builder.shuffle_vector(stored, ir.Constant(words, ir.Undefined), order)
        if whole.width < 32:
            spread_out = builder.zext(spread_out, code.integers)
        shifts = ir.Constant(code.integers, [4 * (lane % 8) for lane in lanes])
        codes = builder.uitofp(builder.and_(builder.lshr(spread_out, shifts), self._bits(15)), code.vector)
        pair = builder.load(self._factors(head, part), typ=ir.VectorType(F16, 2), align=2)
        pair = builder.fpext(pair, ir.VectorType(F32, 2))
        scale, minimum = (code.splat(builder.extract_element(pair, ir.Constant(I32, index))) for index in range(2))
        return code.fma(codes, scale, minimum)

    def _store_group(self, values: Sequence[Value], head: Value, part: int) -> None:
        """Stores the vectors of one group, which begins at number `part` of a head."""
        code, builder = self._code, self._code.builder
        zero, limit = code.constant(0.0), code.constant(LIMIT)
        clamped = [code.maximum(code.constant(-LIMIT), code.minimum(value, limit)) for value in values]
        low, high, poison = clamped[0], clamped[0], builder.fmul(values[0], zero)
        for value, given in zip(clamped[1:], values[1:], strict=True):
            low, high = code.minimum(low, value), code.maximum(high, value)
            # A NaN must stay one: comparisons drop it, but a product with zero does not.
            poison = builder.fadd(poison, builder.fmul(given, zero))
        low, high = code.folded(low, 1, code.minimum), code.folded(high, 1, code.maximum)
        # Adding zero leaves no zero with a sign.
        low = builder.fadd(builder.fadd(low, code.folded(poison, 1, builder.fadd)), zero)
        halves = ir.VectorType(F16, code.width)
        scale = builder.fptrunc(builder.fdiv(builder.fsub(high, low), code.constant(MOST)), halves)
        minimum = builder.fptrunc(low, halves)
        wide, base = builder.fpext(scale, code.vector), builder.fpext(minimum, code.vector)
        is_flat = builder.fcmp_ordered("==", wide, zero)
        inverse = builder.select(is_flat, zero, builder.fdiv(code.constant(1.0), wide))
        shifts = ir.Constant(code.integers, [4 * (lane % 8) for lane in range(code.width)])
        for index, value in enumerate(clamped):
            scaled = builder.fmul(builder.fsub(value, base), inverse)
            whole = code.rounded(code.maximum(zero, code.minimum(scaled, code.constant(MOST))))
            self._store_codes(builder.shl(whole, shifts), code.at(head, part // 2 + index * code.width // 2, I8))
        place = self._factors(head, part)
        for index, factor in enumerate((scale, minimum)):
            builder.store(code.lane(factor, 0), code.at(place, index, F16), align=2)

    def _store_codes(self, shifted: Value, place: Value) -> None:
        """Joins the lanes, each a code in its place of an int32, by eights."""
        code, builder = self._code, self._code.builder
        for first in range(0, code.width, 8):
            word = code.lane(shifted, first)
            for lane in range(first + 1, min(first + 8, code.width)):
                word = builder.or_(word, code.lane(shifted, lane))
            if code.width < 8:
                word = builder.trunc(word, ir.IntType(4 * code.width))
            builder.store(word, code.at(place, first // 2, I8), align=1)

    def _scale(self, page: Value, token: Value, which: int, head: Value) -> Value:
        code, shape = self._code, self._shape
        place = code.add(code.times(token, scale_count(shape.kind) * shape.kv_heads), head, which * shape.kv_heads)
        return code.at(code.at(page, shape.page_size * shape.token_bytes, I8), place)

    def _e4m3(self, value: Value) -> Value:
        """The e4m3 bits of each lane, rounded half to even; for magnitudes up to 448."""
        code, builder = self._code, self._code.builder
        magnitude = code.magnitude(value)
        raw = builder.bitcast(magnitude, code.integers)
        even = builder.and_(builder.lshr(raw, self._bits(_SHIFT)), self._bits(1))
        carried = builder.add(builder.add(raw, self._bits((1 << (_SHIFT - 1)) - 1)), even)
        normal = builder.sub(builder.lshr(carried, self._bits(_SHIFT)), self._bits(_BIAS << 3))
        # Below the least normal number the bits count multiples of 2^-9.
        small = code.rounded(builder.fmul(magnitude, code.constant(2.0**9)))
        is_small = builder.fcmp_ordered("<", magnitude, code.constant(_MIN_NORMAL))
        sign = builder.lshr(builder.bitcast(value, code.integers), self._bits(24))
        return builder.or_(builder.select(is_small, small, normal), builder.and_(sign, self._bits(_SIGN)))

    def _bits(self, number: int) -> Value:
        return self._code.bits(number)


def spread(code: KernelCode, scalars: Sequence[Value]) -> Value:
    """A vector in which each of the scalars fills the same number of lanes."""
    lanes = code.width // len(scalars)
    vector = ir.Constant(code.vector, ir.Undefined)
    for index, scalar in enumerate(scalars):
        vector = code.builder.insert_element(vector, scalar, ir.Constant(I32, index))
    return code.shuffle(vector, vector, [lane // lanes for lane in range(code.width)])
