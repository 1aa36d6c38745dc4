"""The product of hidden states and the weights of a layer, as LLVM code over panels.

An output is one chain of fused multiply-adds over the inputs in their order, whatever the batch and whoever computes
it, so a row's bits depend on that row alone. Grouped weights are never dequantized: a group's codes are multiplied as
they are, and its sum then takes the scale, and the offset times the sum of the group's inputs.

A tile of rows and panels stays in registers while the inputs go by. Rows are parted evenly over tiles, and all tiles of
a few panels are computed before the next panels are read, so weights come from memory once however many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from llvmlite import ir

from qpdsl.executor.kernels.llvm.kernel_code import F16, F32, I8, I32, I64, KernelCode, Value, Variable
from qpdsl.executor.kernels.llvm.panels import STEP, Factor, FloatPanels, GroupedPanels, Panels

_LINE_BYTES = 64
# A tile of so many rows computes about as long as its weights take to come from memory.
_FEW_TILE_ROWS = 4
# Tiles of more rows that together prefetch what comes next.
_SHARED_BY_TILES = 4
# Rows of a tile of a single panel: only the last few panels of a layer are computed so.
_FEW_ROWS = 2
# From so many rows on narrow floats are widened once for all tiles of rows, instead of in each.
WIDENED_ROWS = 24
_WIDE = FloatPanels(torch.float32)


@dataclass(frozen=True, slots=True)
class TileSize:
    """How many rows and panels are computed at once, for vectors of `width` floats: their sums stay in registers."""

    rows: int
    panels: int

    @classmethod
    def of(cls, width: int, form: Panels) -> TileSize:
        panels = panels_at_once(width)
        # Vectors of 8 come with 16 registers (AVX2), those of 16 and of 4 (NEON) with 32. Weights that are not float32
        # need some to be widened in.
        narrow = not isinstance(form, FloatPanels) or form.dtype is not torch.float32
        return cls((4 if width == 8 else 6) - narrow, panels)


def panels_at_once(width: int) -> int:
    """How many panels a tile has."""
    return 2 if width == 8 else 4


def emit_group_sums(module: ir.Module, name: str, width: int, group: int) -> None:
    """The sums of the groups of each row of inputs. Arguments: x float32 [T, row]; row; sums [T, n]; T; n."""
    code = KernelCode(module, name, ("x", "@row", "sums", "@count", "@groups"), width)
    arguments = code.arguments
    with code.loop(0, arguments["count"]) as row:
        source = code.at(arguments["x"], code.times(row, arguments["row"]))
        target = code.at(arguments["sums"], code.times(row, arguments["groups"]))
        with code.loop(0, arguments["groups"]) as index:
            start = code.at(source, code.times(index, group))
            # Loops: a group may be all inputs of a layer, and the compiler unrolls what is short.
            if group % width:
                number = code.variable(F32, ir.Constant(F32, 0.0))
                with code.loop(0, group) as place:
                    value = code.builder.load(code.at(start, place), typ=F32, align=4)
                    number.set(code.builder.fadd(number.get(), value))
                total = number.get()
            else:
                vector = code.variable(code.vector, code.load(start))
                with code.loop(width, group, width) as place:
                    vector.set(code.builder.fadd(vector.get(), code.load(code.at(start, place))))
                total = code.lane(code.total(vector.get()), 0)
            code.builder.store(total, code.at(target, index), align=4)
    code.end()


def emit_matmul(module: ir.Module, name: str, panels: Panels, width: int) -> None:
    """A product into `out`: factor · (x·Wᵀ + b), plus what is there where `add` is not 0.

    Arguments of the function, in order:
    x          float32 [T, row]
    row        numbers from a row of x to the next
    weights    panels
    bytes      of a panel
    bias       float32 [outputs]
    sums       float32 [T, inputs / group], see `emit_group_sums`, where there are offsets; else room for `widened_room`
               numbers, which is written
    out        float32 [T, out_row]
    out_row    numbers from a row of out to the next
    count      T
    inputs
    outputs
    from, to   the first panel to compute, and the panel to stop before
    factor     float32 [1]
    add
    """
    numbers = ("@count", "@inputs", "@outputs", "@from", "@to")
    arguments = ("x", "@row", "weights", "@bytes", "bias", "sums", "out", "@out_row", *numbers, "factor", "@add")
    code = KernelCode(module, name, arguments, width)
    given, tile = code.arguments, TileSize.of(width, panels)
    whole = code.builder.sdiv(given["outputs"], code.number(width))
    until = code.least(given["to"], whole)
    begin = given["from"]
    length = code.builder.sub(until, begin)
    # As many tiles as fit before the last whole panel, and then single panels.
    last = code.add(begin, code.times(code.builder.sdiv(length, code.number(tile.panels)), tile.panels))
    last = code.most(last, begin)

    def as_they_are() -> None:
        with code.loop(begin, last, tile.panels) as panel:
            _rows(code, tile.rows, partial(_Tile, code, panels, panel, tile.panels))

    if isinstance(panels, FloatPanels) and is_narrow(panels):
        many = code.builder.icmp_signed(">=", given["count"], code.number(WIDENED_ROWS))
        with code.builder.if_else(many, likely=False) as (wide, narrow):
            with wide, code.loop(begin, last, tile.panels) as panel:
                _widen(code, panels, panel, tile.panels)
                _rows(code, TileSize.of(width, _WIDE).rows, partial(_WidenedTile, code, _WIDE, panel, tile.panels))
            with narrow:
                as_they_are()
    else:
        as_they_are()
    with code.loop(last, given["to"]) as panel:
        _rows(code, _FEW_ROWS, partial(_Tile, code, panels, panel, 1, masked=True))
    code.end()


def emit_listed(module: ir.Module, name: str, panels: Panels, width: int) -> None:
    """A product of listed panels: x·Wᵀ + b of their outputs, with the bits that `emit_matmul` gives them.

    Arguments of the function, in order:
    x          float32 [T, row]
    row        numbers from a row of x to the next
    weights    panels
    bytes      of a panel
    bias       float32 [panels, width], padded for the last panel
    sums       as in `emit_matmul`
    listed     int32 [end], the numbers of panels
    out        float32 [T, out_row], the outputs of the first panel first, with room for `panels_at_once` more
    out_row    numbers from a row of out to the next
    count      T
    inputs
    from, to   the place in the list of the first panel to compute, and the place to stop before
    end        the place in the list up to which panels are prefetched, for the next call
    """
    numbers = ("@out_row", "@count", "@inputs", "@from", "@to", "@end")
    code = KernelCode(
        module, name, ("x", "@row", "weights", "@bytes", "bias", "sums", "listed", "out", *numbers), width
    )
    given, tile = code.arguments, TileSize.of(width, panels)
    with code.loop(given["from"], given["to"], tile.panels) as place:
        _rows(code, tile.rows, partial(_ListedTile, code, panels, place, tile.panels))
    code.end()


def is_narrow(panels: Panels) -> bool:
    """Whether the weights are floats that many rows are better multiplied with once they are float32."""
    return isinstance(panels, FloatPanels) and panels.dtype is not torch.float32


def widened_room(panels: Panels, width: int, inputs: int) -> int:
    """The numbers of the panels of a tile as float32, where weights are widened; else 0."""
    return panels_at_once(width) * width * inputs if is_narrow(panels) else 0


def _widen(code: KernelCode, form: FloatPanels, panel: Value, panels: int) -> None:
    """Writes the panels of a tile to the room in `sums`, as float32: what is exact changes no bit of a product."""
    builder, width, given = code.builder, code.width, code.arguments
    size = code.times(given["inputs"], width)
    for number in range(panels):
        source = code.at(given["weights"], builder.mul(code.add(panel, number), given["bytes"]), I8)
        target = code.at(given["sums"], code.times(size, number))
        with code.loop(0, given["inputs"], 2) as place:
            for step, value in enumerate(emit_pair(code, form, source, place)):
                code.store(value, code.at(target, code.times(code.add(place, step), width)))


def emit_pair(code: KernelCode, form: FloatPanels, panel: Value, place: Value) -> tuple[Value, Value]:
    """The weights of input `place`, which is even, and of the next one, as vectors of float32."""
    builder, width = code.builder, code.width
    if form.dtype is torch.bfloat16:
        at = code.at(panel, code.times(builder.sdiv(place, code.number(2)), width))
        pair = builder.load(at, typ=code.integers, align=4)
        # The first of a pair is in the low bits. Followed by zeros, bfloat16 is float32.
        low = builder.shl(pair, ir.Constant(code.integers, [16] * width))
        high = builder.and_(pair, ir.Constant(code.integers, [-65536] * width))
        return builder.bitcast(low, code.vector), builder.bitcast(high, code.vector)
    kind = F16 if form.dtype is torch.float16 else F32
    first, second = (code.at(panel, code.times(code.add(place, step), width), kind) for step in range(2))
    return _float(code, first, kind), _float(code, second, kind)


def _float(code: KernelCode, address: Value, kind: ir.Type) -> Value:
    """A vector of floats of 16 or 32 bits, as float32."""
    if kind is F32:
        return code.load(address)
    return code.builder.fpext(code.builder.load(address, typ=ir.VectorType(F16, code.width), align=2), code.vector)


def _rows(code: KernelCode, most: int, tile: Callable[[Value, Value, int], _Tile]) -> None:
    """All rows of the panels of a tile, in tiles of up to `most` rows whose numbers of rows differ by one at most.

    `tile`: of its number, its first row and its number of rows.
    """
    builder, count = code.builder, code.arguments["count"]
    tiles = builder.sdiv(code.add(count, most - 1), code.number(most))
    with code.loop(0, tiles) as index:
        first = builder.sdiv(code.times(count, index), tiles)
        after = builder.sdiv(code.times(count, code.add(index, 1)), tiles)
        rows = builder.sub(after, first)
        end = builder.append_basic_block("tile")
        switch = builder.switch(rows, end)
        for number in range(1, most + 1):
            block = builder.append_basic_block(f"rows {number}")
            switch.add_case(code.number(number), block)
            builder.position_at_end(block)
            tile(index, first, number).emit()
            builder.branch(end)
        builder.position_at_end(end)


class _Tile:
    """The code of tile number `index` of some panels: `rows` rows from `first` on, `panels` panels from `panel` on.

    With `masked`, the panel may be the last, which has fewer outputs than lanes.
    """

    def __init__(
        self,
        code: KernelCode,
        form: Panels,
        panel: Value,
        panels: int,
        index: Value,
        first: Value,
        rows: int,
        *,
        masked: bool = False,
    ) -> None:
        self._code, self._form, self._index = code, form, index
        self._first, self._masked = first, masked
        arguments, builder = code.arguments, code.builder
        row_bytes = code.times(arguments["row"], 4)
        self._inputs = [
            code.at(arguments["x"], builder.mul(code.add(first, row), row_bytes), I8) for row in range(rows)
        ]
        self._panels = self._numbers(panel, panels)
        self._weights = [
            code.at(arguments["weights"], builder.mul(number, arguments["bytes"]), I8) for number in self._panels
        ]
        # Where prefetching begins.
        self._source = self._weights[0]
        self._cells = [(row, number) for row in range(rows) for number in range(panels)]
        self._ahead = code.times(arguments["bytes"], panels)

    def _numbers(self, panel: Value, panels: int) -> list[Value]:
        """The numbers of the panels."""
        return [self._code.add(panel, number) for number in range(panels)]

    def emit(self) -> None:
        form = self._form
        self._store(self._floats(form) if isinstance(form, FloatPanels) else self._grouped(form))

    def _store(self, sums: dict[tuple[int, int], Variable]) -> None:
        code, builder, arguments = self._code, self._code.builder, self._code.arguments
        factor, added = code.broadcast(arguments["factor"]), code.builder.trunc(arguments["add"], ir.IntType(1))
        for row, number in self._cells:
            column = code.times(self._panels[number], code.width)
            target = code.at(arguments["out"], code.times(code.add(self._first, row), arguments["out_row"]))
            target, bias = code.at(target, column), code.at(arguments["bias"], column)
            lanes = code.below(builder.sub(arguments["outputs"], column)) if self._masked else None
            value = builder.fadd(sums[row, number].get(), code.load_some(bias, lanes))
            before = code.variable(code.vector, code.constant(0.0))
            with builder.if_then(added):
                before.set(code.load_some(target, lanes))
            code.store_some(code.fma(value, factor, before.get()), target, lanes)

    def _zeros(self) -> dict[tuple[int, int], Variable]:
        code = self._code
        return {cell: code.variable(code.vector, code.constant(0.0)) for cell in self._cells}

    def _accumulate(self, sums: dict[tuple[int, int], Variable], place: Value, weights: Sequence[Value]) -> None:
        """One input of each row: `place` is its number, `weights` are its weights in each panel."""
        code = self._code
        for row, source in enumerate(self._inputs):
            value = code.broadcast(code.at(source, place))
            for number, weight in enumerate(weights):
                total = sums[row, number]
                total.set(code.fma(value, weight, total.get()))

    def _prefetch(self, addresses: Sequence[Value], step: Value, size: int) -> None:
        """Prefetches weights of the next panels, while `size` inputs from number `step` on are computed.

        The hardware prefetches within pages of memory only, and a panel has but a few. A tile of few rows takes no
        longer to compute than its weights to come, so it prefetches what the next panels have at its own `addresses`.
        Each tile of many rows prefetches a part of the next panels, and the tiles of all rows together prefetch all.
        """
        code, builder = self._code, self._code.builder
        if len(self._inputs) <= _FEW_TILE_ROWS:
            for address in addresses:
                code.prefetch(code.at(address, self._ahead, I8))
            return
        lines = -(-len(addresses) // _SHARED_BY_TILES)
        done = code.add(builder.mul(self._index, code.arguments["inputs"]), step)
        place = code.times(builder.sdiv(done, code.number(size)), lines * _LINE_BYTES)
        last = code.add(self._ahead, -_LINE_BYTES)
        for line in range(lines):
            at = code.least(code.add(place, line * _LINE_BYTES), last)
            code.prefetch(code.at(self._source, code.add(at, self._ahead), I8))

    def _floats(self, form: FloatPanels) -> dict[tuple[int, int], Variable]:
        code, width = self._code, self._code.width
        sums = self._zeros()
        itemsize = form.dtype.itemsize
        # A cache line of each panel at a time, or two.
        unrolled = 2 if form.dtype is torch.bfloat16 else 4
        with code.loop(0, code.arguments["inputs"], unrolled) as start:
            lines = range(0, unrolled * width * itemsize, _LINE_BYTES)
            place = code.times(start, width * itemsize)
            ahead = [code.at(panel, code.add(place, line), I8) for line in lines for panel in self._weights]
            self._prefetch(ahead, start, unrolled)
            for step in range(0, unrolled, 2):
                place = code.add(start, step)
                pairs = [emit_pair(code, form, panel, place) for panel in self._weights]
                for number, weights in enumerate(zip(*pairs, strict=True)):
                    self._accumulate(sums, code.add(place, number), weights)
        return sums

    def _grouped(self, form: GroupedPanels) -> dict[tuple[int, int], Variable]:
        code, builder, width = self._code, self._code.builder, self._code.width
        totals = self._zeros()
        arguments = code.arguments
        groups = builder.sdiv(arguments["inputs"], code.number(form.group))
        header, group_bytes, block_bytes = form.header_bytes(width), form.group_bytes(width), form.block_bytes(width)
        scale_bytes = width * _factor_bytes(form.scale)
        codes_at = width * (form.scaled + form.shifted)
        with code.loop(0, builder.sdiv(arguments["inputs"], code.number(form.block))) as block:
            blocks = [code.at(panel, code.times(block, block_bytes), I8) for panel in self._weights]
            scales = [self._factors(address, form.scale) for address in blocks]
            offsets = None
            if form.offset is not None:
                offsets = [self._factors(code.at(address, scale_bytes, I8), form.offset) for address in blocks]
            in_block = form.block // form.group
            with code.loop(0, in_block) as index:
                group = code.add(code.times(block, in_block), index)
                addresses = [
                    code.at(address, code.add(code.times(index, group_bytes), header), I8) for address in blocks
                ]
                sums = self._zeros()
                self._codes(form, sums, group, [code.at(address, codes_at, I8) for address in addresses])
                own = self._own(form.scaled, scales, addresses, 0)
                for row, number in self._cells:
                    total = totals[row, number]
                    total.set(code.fma(sums[row, number].get(), own[number], total.get()))
                if offsets is not None:
                    shifts = self._own(form.shifted, offsets, addresses, width * form.scaled)
                    for row in range(len(self._inputs)):
                        place = code.add(code.times(code.add(self._first, row), groups), group)
                        inputs = code.broadcast(code.at(arguments["sums"], place))
                        for number, shift in enumerate(shifts):
                            total = totals[row, number]
                            total.set(code.fma(inputs, shift, total.get()))
        return totals

    def _factors(self, address: Value, factor: Factor) -> Value:
        return _float(self._code, address, F16 if factor == "float16" else F32)

    def _own(self, coded: bool, factors: list[Value], addresses: list[Value], at: int) -> list[Value]:
        """The factors of a group, of those of its block and its codes `at` so many bytes."""
        if not coded:
            return factors
        code, builder = self._code, self._code.builder
        return [
            builder.fmul(factor, self._bytes(code.at(address, at, I8)))
            for factor, address in zip(factors, addresses, strict=True)
        ]

    def _bytes(self, address: Value) -> Value:
        """A vector of signed bytes as floats."""
        code, builder = self._code, self._code.builder
        loaded = builder.load(address, typ=ir.VectorType(I8, code.width), align=1)
        return builder.sitofp(builder.sext(loaded, code.integers), code.vector)

    def _codes(
        self, form: GroupedPanels, sums: dict[tuple[int, int], Variable], group: Value, codes: list[Value]
    ) -> None:
        """Adds the products of a group's inputs and its codes at the given addresses, one for each panel."""
        code, builder, width = self._code, self._code.builder, self._code.width
        start = code.times(group, form.group)
        with code.loop(0, form.group, STEP) as step:
            place = code.add(start, step)
            begin, size = code.times(step, width * form.bits // 8), STEP * width * form.bits // 8
            ahead = [code.at(c, code.add(begin, line), I8) for line in range(0, size, _LINE_BYTES) for c in codes]
            self._prefetch(ahead, place, STEP)
            if form.bits == 8:
                for index in range(STEP):
                    at = code.times(code.add(step, index), width)
                    self._accumulate(sums, code.add(place, index), [self._bytes(code.at(c, at, I8)) for c in codes])
            else:
                words = [builder.load(code.at(c, begin, I8), typ=code.integers, align=4) for c in codes]
                for index in range(STEP):
                    shift = ir.Constant(code.integers, [4 * index] * width)
                    nibbles = [builder.lshr(word, shift) for word in words]
                    self._accumulate(sums, code.add(place, index), [self._nibbles(value) for value in nibbles])

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


class _WidenedTile(_Tile):
    """A tile of panels that lie in the room in `sums`; those that are prefetched are the stored ones."""

    def __init__(
        self, code: KernelCode, form: Panels, panel: Value, panels: int, index: Value, first: Value, rows: int
    ) -> None:
        super().__init__(code, form, panel, panels, index, first, rows)
        size = code.times(code.arguments["inputs"], code.width)
        self._weights = [code.at(code.arguments["sums"], code.times(size, number)) for number in range(panels)]

    def _prefetch(self, addresses: Sequence[Value], step: Value, size: int) -> None:
        if len(self._inputs) > _FEW_TILE_ROWS:
            super()._prefetch(addresses, step, size)


class _ListedTile(_Tile):
    """As `_Tile`, of the panels that the list names from place `panel` on; those after `to` repeat the last."""

    def _numbers(self, panel: Value, panels: int) -> list[Value]:
        code, given = self._code, self._code.arguments
        self._place = panel

        def numbers(start: int, end: Value) -> list[Value]:
            last = code.add(end, -1)
            places = [code.least(code.add(panel, start + number), last) for number in range(panels)]
            return [code.integer(given["listed"], place, I32) for place in places]

        self._next = [
            code.at(given["weights"], code.builder.mul(number, given["bytes"]), I8)
            for number in numbers(panels, given["end"])
        ]
        return numbers(0, given["to"])

    def _store(self, sums: dict[tuple[int, int], Variable]) -> None:
        code, given = self._code, self._code.arguments
        start = code.times(code.builder.sub(self._place, given["from"]), code.width)
        for row, number in self._cells:
            bias = code.load(code.at(given["bias"], code.times(self._panels[number], code.width)))
            target = code.at(given["out"], code.times(code.add(self._first, row), given["out_row"]))
            value = code.builder.fadd(sums[row, number].get(), bias)
            code.store(value, code.at(target, code.add(start, number * code.width)))

    def _prefetch(self, addresses: Sequence[Value], step: Value, size: int) -> None:
        """As in `_Tile`, but each tile of many rows prefetches one of the next panels."""
        code, builder = self._code, self._code.builder
        panels = len(self._weights)
        following = [builder.ptrtoint(address, I64) for address in self._next]
        own = [builder.ptrtoint(address, I64) for address in self._weights]
        if len(self._inputs) <= _FEW_TILE_ROWS:
            for number, address in enumerate(addresses):
                panel = number % panels
                code.prefetch(code.at(address, builder.sub(following[panel], own[panel]), I8))
            return
        turn = builder.and_(self._index, code.number(panels - 1))
        chosen = following[0]
        for panel in range(1, panels):
            is_turn = builder.icmp_unsigned("==", turn, code.number(panel))
            chosen = builder.select(is_turn, following[panel], chosen)
        ahead = builder.sub(chosen, own[0])
        for address in addresses[::panels]:
            code.prefetch(code.at(address, ahead, I8))


def _factor_bytes(factor: Factor) -> int:
    return 2 if factor == "float16" else 4
