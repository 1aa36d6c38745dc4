"""Keys and values as pages store them, plain or in eight bits: written by `store`, and made numbers again.

Tensor cores want two neighbours of a column in one register. Elements of eight bits lie along a row, so values are
loaded as words of 16 bits, and each word's elements become matrices of their own, with a product of their own: columns
0, 2, 4, … and 1, 3, 5, …. `joined` puts the products' columns in order, once for all blocks. So two numbers at a time
are made from one register, and nothing is moved between threads.

To float16 they are made by their bits (Kim, Henry, Fahim and Awadalla, "Who Says Elephants Can't Run", 2022): an
integer n below 1024 is the low bits of the float16 number 1024 + n. Triton has no words for two numbers in a register,
so this is PTX, and where another type is wanted, as under the interpreter, the same in Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.kv_rows import LARGEST, SMALLEST, KVRows
from qpdsl.executor.kernels.triton.common import (
    FP8,
    HARD_FP8,
    INT8,
    INTERPRETED,
    LAUNCH,
    PLAIN,
    KernelRows,
    Strided,
)

_BY_HAND = tl.constexpr(INTERPRETED)
_LARGEST_INT8, _LARGEST_FP8, _SMALLEST = (tl.constexpr(end) for end in (LARGEST["int8"], LARGEST["fp8"], SMALLEST))


def _ptx(*lines: str) -> tl.constexpr:
    return tl.constexpr("{ .reg .b32 a, b, c; .reg .b16 h; " + " ".join(f"{line};" for line in lines) + " }")


# With its highest bit turned, an int8 number n is n + 128; and 0x6480 is 1152.
_INT8_EVEN = _ptx(
    "and.b32 a, $1, 0x00ff00ff", "xor.b32 a, a, 0x64806480", "mov.b32 c, 0x64806480", "sub.f16x2 $0, a, c"
)


_INT8_ODD = _ptx(
    "xor.b32 a, $1, 0x80008000",
    "mov.b32 c, 0x64646464",
    "prmt.b32 a, a, c, 0x4341",
    "mov.b32 c, 0x64806480",
    "sub.f16x2 $0, a, c",
)


# Four along a row: keys are multiplied along rows.
_INT8_KEYS = _ptx(
    "xor.b32 b, $2, 0x80808080",
    "mov.b32 c, 0x64646464",
    "prmt.b32 a, b, c, 0x4140",
    "prmt.b32 b, b, c, 0x4342",
    "mov.b32 c, 0x64806480",
    "sub.f16x2 $0, a, c",
    "sub.f16x2 $1, b, c",
)


_E4M3 = ("shr.b32 b, a, 1", "and.b32 b, b, 0x3f803f80", "and.b32 a, a, 0x80008000", "or.b32 $0, a, b")


_FP8_EVEN, _FP8_ODD = _ptx("shl.b32 a, $1, 8", *_E4M3), _ptx("mov.b32 a, $1", *_E4M3)


_PAIR = ("cvt.u16.u32 h, a", "cvt.rn.f16x2.e4m3x2 $0, h")


_HARD_FP8_EVEN, _HARD_FP8_ODD = (_ptx(f"prmt.b32 a, $1, 0, {take}", *_PAIR) for take in ("0x4420", "0x4431"))


@triton.jit
def widen(x, KIND: tl.constexpr, DOT: tl.constexpr):
    """Stored elements as numbers; for FP8 a 256th of each, which is multiplied back with its scale.

    The bits of an e4m3 number, moved into the low exponent bits of a float16, are that number times 2**-8, also where
    it is subnormal. So no device needs a type for it.
    """
    if KIND == HARD_FP8:
        wide = x.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    elif KIND == FP8:
        bits = x.to(tl.uint16)
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        wide = half.to(tl.float16, bitcast=True)
    elif KIND == INT8:
        if tl.float16 == DOT and not _BY_HAND:
            wide = tl.inline_asm_elementwise(_INT8_KEYS, "=r,=r,r", [x], tl.float16, True, 4)
        else:
            wide = x.to(tl.int8, bitcast=True).to(tl.float32)
    else:
        wide = x
    return wide.to(DOT)


@triton.jit
def _made(ptx: tl.constexpr, words):
    """What `ptx` makes of two words uint16: float16."""
    return tl.inline_asm_elementwise(ptx, "=r,r", [words], tl.float16, True, 2)


@triton.jit
def bytes_of(words, HIGH: tl.constexpr, KIND: tl.constexpr, DOT: tl.constexpr):
    """Of words uint16 the eight-bit elements in the low bytes, or with HIGH in the high ones, as `widen` gives them."""
    if tl.float16 == DOT and not _BY_HAND:
        if KIND == INT8:
            wide = _made(_INT8_ODD if HIGH else _INT8_EVEN, words)
        elif KIND == FP8:
            wide = _made(_FP8_ODD if HIGH else _FP8_EVEN, words)
        else:
            wide = _made(_HARD_FP8_ODD if HIGH else _HARD_FP8_EVEN, words)
    else:
        wide = widen((words >> 8 if HIGH else words & 0xFF).to(tl.uint8), KIND, DOT)
    return wide


@triton.jit
def unjoined(M: tl.constexpr, D_PAD: tl.constexpr, KIND: tl.constexpr):
    """Zeros for sums over values [M, D_PAD], as the matrices that values of KIND become."""
    part = tl.zeros([M, D_PAD if KIND == PLAIN else D_PAD // 2], tl.float32)
    return (part,) if KIND == PLAIN else (part, part)


@triton.jit
def joined(parts, M: tl.constexpr, D_PAD: tl.constexpr, KIND: tl.constexpr):
    """The sums [M, D_PAD] of `unjoined` ones."""
    return parts[0] if KIND == PLAIN else tl.reshape(tl.join(parts[0], parts[1]), [M, D_PAD])


@triton.jit
def to_e4m3(x):
    """The e4m3 bits uint8 of x float32, |x| ≤ 448, rounded half to even."""
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = tl.abs(x)
    # Adding 2**14 rounds to multiples of 2**-9, the step of subnormal e4m3 numbers; the low bits then count them.
    small = (size + 16384.0).to(tl.uint32, bitcast=True) & 0xFF
    plain = size.to(tl.uint32, bitcast=True)
    # 20 of the 23 bits of the mantissa are dropped, and the bias of the exponent goes from 127 to 7.
    normal = ((plain + 0x7FFFF + ((plain >> 20) & 1)) >> 20) - 960
    return (sign | tl.where(size < 0.015625, small, normal)).to(tl.uint8)


@triton.jit
def put(x, rows, row, place, head, real, WHICH: tl.constexpr):
    """Stores the keys (WHICH 0) or the values (1) `x` [N, D_PAD], which are 0 from D on.

    Each is that of the KV head `head` [N], where `real` [N], at `place` of `row`: one number, or int64 [N].
    """
    KIND: tl.constexpr = rows.KIND
    KV: tl.constexpr = rows.KV
    D: tl.constexpr = rows.D
    N: tl.constexpr = x.shape[0]
    D_PAD: tl.constexpr = x.shape[1]
    d = tl.arange(0, D_PAD)
    mask = real[:, None] & (d < D)[None, :]
    TOKEN: tl.constexpr = 2 * KV * D
    at = row * rows.ROW + place * TOKEN + WHICH * (KV * D)
    to = rows.data + (at + head * D)[:, None] + d[None, :]
    if KIND == PLAIN:
        tl.store(to, x, mask=mask)
    else:
        LARGEST: tl.constexpr = _LARGEST_FP8 if KIND == FP8 else _LARGEST_INT8
        x = x.to(tl.float32)
        largest = tl.max(tl.abs(x), 1)
        zero = largest < _SMALLEST
        safe = tl.where(zero, 1.0, largest)
        scale = tl.where(zero, 0.0, tl.div_rn(safe, tl.full([N], LARGEST, tl.float32)))
        inverse = tl.where(zero, 0.0, tl.div_rn(tl.full([N], LARGEST, tl.float32), safe))
        scaled = tl.minimum(tl.maximum(x * inverse[:, None], -LARGEST), LARGEST)
        if KIND == FP8:
            tl.store(to, to_e4m3(scaled), mask=mask)
        else:
            # Adding 1.5 · 2**23 rounds to whole numbers, half to even.
            whole = (scaled + 12582912.0) - 12582912.0
            tl.store(to, whole.to(tl.int32).to(tl.int8).to(tl.uint8, bitcast=True), mask=mask)
        scale_at = row * (rows.ROW // 4) + rows.PAGE * TOKEN // 4 + (place * 2 + WHICH) * KV
        tl.store(rows.scales + scale_at + head, scale, mask=real)


@triton.jit
def put_token(new, rows, token, row, place, WHICH: tl.constexpr):
    """Stores the key (WHICH 0) or the value (1) [KV, D] of one token."""
    head = tl.arange(0, rows.KV_PAD)
    d = tl.arange(0, rows.D_PAD)
    mask = (head < rows.KV)[:, None] & (d < rows.D)[None, :]
    at = token * new.token + head[:, None] * new.head + d[None, :] * new.dim
    put(tl.load(new.data + at, mask=mask, other=0.0), rows, row, place, head, head < rows.KV, WHICH)


@triton.jit(do_not_specialize=["layer"])
def store_kernel(key, value, rows, slots, layer):
    """A program for each token (axis 0), and each of its key and its value (axis 1)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    row, place = slot // rows.PAGE + layer, slot % rows.PAGE
    if tl.program_id(1) == 0:
        put_token(key, rows, token, row, place, 0)
    else:
        put_token(value, rows, token, row, place, 1)


def store(rows: KVRows, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, layer: int) -> None:
    """Writes `key` and `value` [T, KV, D] of one layer, any strides, to `slots` int64 [T]. Twin: `reference.store`."""
    if not key.shape[0]:
        return
    warps = 4 if rows.kv_heads * rows.dim > 512 else 1
    store_kernel[(key.shape[0], 2)](
        Strided.of(key), Strided.of(value), KernelRows.of(rows), slots, layer, num_warps=warps, **LAUNCH
    )
