"""Weights in panels, as LLVM code reads them (see `panels.py`): widened to float32, which is exact."""

from __future__ import annotations

import torch
from llvmlite import ir

from qpdsl.executor.kernels.llvm.kernel_code import F16, F32, I8, KernelCode, Value
from qpdsl.executor.kernels.llvm.panels import STEP, Factor, FloatPanels, GroupedPanels

LINE_BYTES = 64


def emit_pair(code: KernelCode, form: FloatPanels, panel: Value, place: Value) -> tuple[Value, Value]:
    """The weights of input `place`, which is even, and of the next one, as vectors of float32."""
    builder, width = code.builder, code.width
    if form.dtype is torch.bfloat16:
        pair = emit_raw_pair(code, panel, place)
        # The first of a pair is in the low bits. Followed by zeros, bfloat16 is float32.
        low = builder.shl(pair, ir.Constant(code.integers, [16] * width))
        high = builder.and_(pair, ir.Constant(code.integers, [-65536] * width))
        return builder.bitcast(low, code.vector), builder.bitcast(high, code.vector)
    kind = F16 if form.dtype is torch.float16 else F32
    first, second = (code.at(panel, code.times(code.add(place, step), width), kind) for step in range(2))
    return _float(code, first, kind), _float(code, second, kind)


def emit_raw_pair(code: KernelCode, panel: Value, place: Value) -> Value:
    """The weights in bfloat16 of input `place`, which is even, and of the next one, as a vector of int32."""
    at = code.at(panel, code.times(code.builder.sdiv(place, code.number(2)), code.width))
    return code.builder.load(at, typ=code.integers, align=4)


def _float(code: KernelCode, address: Value, kind: ir.Type) -> Value:
    """A vector of floats of 16 or 32 bits, as float32."""
    if kind is F32:
        return code.load(address)
    return code.builder.fpext(code.builder.load(address, typ=ir.VectorType(F16, code.width), align=2), code.vector)


class GroupCode:
    """Where a panel has the scale, the offset and the codes of a group of inputs, and the code that reads them."""

    def __init__(self, code: KernelCode, form: GroupedPanels, group: Value) -> None:
        self._code, self._form = code, form
        in_block = code.number(form.block // form.group)
        self._block = code.times(code.builder.sdiv(group, in_block), form.block_bytes(code.width))
        within = code.times(code.builder.srem(group, in_block), form.group_bytes(code.width))
        self._group = code.add(self._block, within, form.header_bytes(code.width))

    def scale(self, panel: Value) -> Value:
        """The scales of the group, of those of its block and its codes."""
        form = self._form
        factor = self._factors(self._code.at(panel, self._block, I8), form.scale)
        return self._scaled(factor, panel, 0) if form.scaled else factor

    def shift(self, panel: Value) -> Value | None:
        """The offsets of the group; None where there are none."""
        form, code = self._form, self._code
        if form.offset is None:
            return None
        after = code.width * _factor_bytes(form.scale)
        factor = self._factors(code.at(panel, code.add(self._block, after), I8), form.offset)
        return self._scaled(factor, panel, code.width * form.scaled) if form.shifted else factor

    def code_address(self, panel: Value, step: Value) -> Value:
        code, form = self._code, self._form
        begin = code.times(step, code.width * form.bits // 8)
        return code.at(panel, code.add(self._group, begin, code.width * (form.scaled + form.shifted)), I8)

    def prefetch(self, panel: Value, step: Value) -> None:
        """Prefetches the codes of `STEP` inputs of the group from `step` on."""
        code = self._code
        for line in range(0, STEP * code.width * self._form.bits // 8, LINE_BYTES):
            code.prefetch(code.at(self.code_address(panel, step), line, I8))

    def codes(self, panel: Value, step: Value) -> list[Value]:
        """The codes of `STEP` inputs of the group from `step` on, as vectors of floats."""
        code, builder, width = self._code, self._code.builder, self._code.width
        address = self.code_address(panel, step)
        if self._form.bits == 8:
            return [self._bytes(code.at(address, index * width, I8)) for index in range(STEP)]
        word = builder.load(address, typ=code.integers, align=4)
        shifts = [ir.Constant(code.integers, [4 * index] * width) for index in range(STEP)]
        return [self._nibbles(builder.lshr(word, shift)) for shift in shifts]

    def _factors(self, address: Value, factor: Factor) -> Value:
        return _float(self._code, address, F16 if factor == "float16" else F32)

    def _scaled(self, factor: Value, panel: Value, at: int) -> Value:
        """The factors of a block times the codes of the group, which begin `at` so many bytes behind its begin."""
        code = self._code
        return code.builder.fmul(factor, self._bytes(code.at(panel, code.add(self._group, at), I8)))

    def _bytes(self, address: Value) -> Value:
        """A vector of signed bytes as floats."""
        code, builder = self._code, self._code.builder
        loaded = builder.load(address, typ=ir.VectorType(I8, code.width), align=1)
        return builder.sitofp(builder.sext(loaded, code.integers), code.vector)

    def _nibbles(self, value: Value) -> Value:
        """The lowest four bits of each lane as floats."""
        code, builder, width = self._code, self._code.builder, self._code.width
        if width == 16:
            # One permutation of a table looks up all lanes, and reads four bits of each index.
            kind = ir.FunctionType(code.vector, [code.vector, code.integers])
            table = code.constant([float(index) for index in range(16)])
            return builder.call(code.intrinsic("llvm.x86.avx512.permvar.sf.512", kind), [table, value])
        low = builder.and_(value, ir.Constant(code.integers, [15] * width))
        return builder.sitofp(low, code.vector)


def _factor_bytes(factor: Factor) -> int:
    return 2 if factor == "float16" else 4
