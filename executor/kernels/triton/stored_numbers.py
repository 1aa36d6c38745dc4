"""Keys and values as pages store them, plain, in eight bits or in four: written by `store`, and made numbers again.

Tensor cores want two neighbours of a column in one register. Elements of eight or four bits lie along a row, so values
are loaded as words of 16 bits, and each word's elements become matrices of their own, with a product of their own:
columns 0, 2, 4, … and 1, 3, 5, … of eight bits, and every fourth of four. `joined` puts the products' columns in order,
once for all blocks. So two numbers at a time are made from one register, and nothing is moved between threads.

To float16 they are made by their bits (Kim, Henry, Fahim and Awadalla, "Who Says Elephants Can't Run", 2022): an
integer n below 1024 is the low bits of the float16 number 1024 + n. Triton has no words for two numbers in a register,
so this is PTX, and where another type is wanted, as under the interpreter, the same in Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qpdsl.executor.kernels.data.int4_groups import LIMIT, MOST
from qpdsl.executor.kernels.data.kv_rows import LARGEST, SMALLEST, KVRows
from qpdsl.executor.kernels.triton.common import (
    FP8,
    HARD_FP8,
    INT4,
    INT8,
    INTERPRETED,
    LAUNCH,
    PLAIN,
    KernelRows,
    Strided,
)

# How many matrices values become.
COLUMNS = {"plain": 1, "int8": 2, "fp8": 2, "int4": 4}
_BY_HAND = tl.constexpr(INTERPRETED)
_LARGEST_INT8, _LARGEST_FP8, _SMALLEST = (tl.constexpr(end) for end in (LARGEST["int8"], LARGEST["fp8"], SMALLEST))
_MOST, _LIMIT = tl.constexpr(MOST), tl.constexpr(LIMIT)


def _ptx(*lines: str) -> tl.constexpr:
    return tl.constexpr("{ .reg .b32 a, b, c; .reg .b16 h; " + " ".join(f"{line};" for line in lines) + " }")


def _code(place: int) -> tl.constexpr:
    """Code `place` of words $1, times $2 plus $3. An odd one is 16 times too large before, and divided exactly."""
    odd = place % 2
    whole = ("mov.b32 b, 0x2c002c00", "mov.b32 c, 0xd400d400", "fma.rn.f16x2 a, a, b, c")  # a / 16 − 64
    return _ptx(
        f"shr.b32 a, $1, {place // 2 * 8}",
        f"and.b32 a, a, {'0x00f000f0' if odd else '0x000f000f'}",
        "or.b32 a, a, 0x64006400",
        *(whole if odd else ("mov.b32 c, 0x64006400", "sub.f16x2 a, a, c")),
        "fma.rn.f16x2 a, a, $2, $3",
        # The largest of a group may be beyond float16, as its scale was rounded.
        "mov.b32 c, 0x7bff7bff",
        "min.f16x2 $0, a, c",
    )


_CODE_0, _CODE_1, _CODE_2, _CODE_3 = (_code(place) for place in range(4))


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
def factors(scales, at, live, D: tl.constexpr, WORDS: tl.constexpr):
    """The scales and minima float16 [N, WORDS] of words of four codes; a record's begin at float32 `at` [N].

    A group's are loaded once and spread over its words: pipelined loads wait in shared memory.
    """
    GROUP: tl.constexpr = 8 if D % 32 == 0 else 4
    group = tl.arange(0, WORDS // GROUP)
    mask = live[:, None] & (group < D // 4 // GROUP)[None, :]
    # The scale is in the low half, the minimum in the high half.
    both = tl.load(scales + at[:, None] + group[None, :], mask=mask, other=0.0).to(tl.uint32, bitcast=True)
    spread = tl.broadcast_to(both[:, :, None], [at.shape[0], WORDS // GROUP, GROUP])
    spread = tl.reshape(spread, [at.shape[0], WORDS])
    scale = (spread & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True)
    return scale, (spread >> 16).to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def codes(words, scale, minimum, PLACE: tl.constexpr, DOT: tl.constexpr):
    """Of words uint16 of four codes those at PLACE as numbers: code · scale + minimum, rounded once to DOT."""
    if tl.float16 == DOT and not _BY_HAND:
        CODE: tl.constexpr = _CODE_0 if PLACE == 0 else _CODE_1 if PLACE == 1 else _CODE_2 if PLACE == 2 else _CODE_3
        # Two words uint16 with their factors.
        wide = tl.inline_asm_elementwise(CODE, "=r,r,r,r", [words, scale, minimum], tl.float16, True, 2)
    else:
        code = ((words >> (4 * PLACE)) & 15).to(tl.float32)
        wide = (code * scale.to(tl.float32) + minimum.to(tl.float32)).to(DOT)
    return wide


@triton.jit
def unjoined(M: tl.constexpr, D_PAD: tl.constexpr, KIND: tl.constexpr):
    """Zeros for sums over values [M, D_PAD], as the matrices that values of KIND become.

    Words of four codes are at least twice as many as 16 queries: with fewer, every warp would multiply all of them.
    """
    LEAST: tl.constexpr = 32 if M < 32 and D_PAD == 64 else D_PAD // 4
    WIDTH: tl.constexpr = D_PAD if KIND == PLAIN else LEAST if KIND == INT4 else D_PAD // 2
    part = tl.zeros([M, WIDTH], tl.float32)
    return (part,) if KIND == PLAIN else (part, part, part, part) if KIND == INT4 else (part, part)


@triton.jit
def joined(parts, M: tl.constexpr, D_PAD: tl.constexpr, KIND: tl.constexpr):
    """The sums [M, D_PAD] of `unjoined` ones."""
    if KIND == PLAIN:
        whole = parts[0]
    elif KIND == INT4:
        whole = tl.join(tl.join(parts[0], parts[2]), tl.join(parts[1], parts[3]))
        if parts[0].shape[1] * 4 > D_PAD:
            whole, _ = tl.split(tl.permute(tl.reshape(whole, [M, 2, D_PAD]), (0, 2, 1)))
        whole = tl.reshape(whole, [M, D_PAD])
    else:
        whole = tl.reshape(tl.join(parts[0], parts[1]), [M, D_PAD])
    return whole


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
def put_groups(x, rows, at, real):
    """Stores each line of `x` [N, D_PAD], where `real` [N], as a record at byte `at` [N]. Twin: `int4_groups.pack`."""
    D: tl.constexpr = rows.D
    N: tl.constexpr = x.shape[0]
    D_PAD: tl.constexpr = x.shape[1]
    GROUP: tl.constexpr = 32 if D % 32 == 0 else 16
    clamped = tl.minimum(tl.maximum(x.to(tl.float32), -_LIMIT), _LIMIT)
    grouped = tl.reshape(clamped, [N, D_PAD // GROUP, GROUP])
    low = tl.min(grouped, 2) + 0.0
    scale = tl.div_rn(tl.max(grouped, 2) - low, tl.full([N, D_PAD // GROUP], _MOST, tl.float32)).to(tl.float16)
    minimum = low.to(tl.float16)
    wide = scale.to(tl.float32)
    flat = wide == 0.0
    one = tl.full([N, D_PAD // GROUP], 1.0, tl.float32)
    inverse = tl.where(flat, 0.0, tl.div_rn(one, tl.where(flat, 1.0, wide)))
    scaled = (grouped - minimum.to(tl.float32)[:, :, None]) * inverse[:, :, None]
    # Adding 1.5 · 2**23 rounds to whole numbers, half to even.
    whole = (tl.minimum(tl.maximum(scaled, 0.0), _MOST) + 12582912.0) - 12582912.0
    even, odd = tl.split(tl.reshape(whole.to(tl.int32), [N, D_PAD // 2, 2]))
    byte = tl.arange(0, D_PAD // 2)
    to = rows.data + at[:, None] + byte[None, :]
    tl.store(to, (even | (odd << 4)).to(tl.uint8), mask=real[:, None] & (byte < D // 2)[None, :])
    bits = minimum.to(tl.uint16, bitcast=True).to(tl.uint32) << 16 | scale.to(tl.uint16, bitcast=True).to(tl.uint32)
    group = tl.arange(0, D_PAD // GROUP)
    words = rows.scales + ((at + D // 2) // 4)[:, None] + group[None, :]
    tl.store(words, bits.to(tl.float32, bitcast=True), mask=real[:, None] & (group < D // GROUP)[None, :])


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
    TOKEN: tl.constexpr = KV * (D + rows.WIDE)
    at = row * rows.ROW + place * TOKEN + WHICH * (KV * D)
    to = rows.data + (at + head * D)[:, None] + d[None, :]
    if KIND == PLAIN:
        tl.store(to, x, mask=mask)
    elif KIND == INT4 and WHICH == 1:
        put_groups(x, rows, at + head * rows.WIDE, real)
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
        scale_at = row * (rows.ROW // 4) + rows.PAGE * TOKEN // 4 + (place * rows.SCALES + WHICH) * KV
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
