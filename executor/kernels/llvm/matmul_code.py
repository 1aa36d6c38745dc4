"""The product of hidden states and the weights of a layer, as LLVM code over panels.

An output is one chain of fused multiply-adds over the inputs in their order, whatever the batch and whoever computes
it, so a row's bits depend on that row alone. Grouped weights are never dequantized: a group's codes are multiplied as
they are, and its sum then takes the scale, and the offset times the sum of the group's inputs. Where inputs may be
rounded to bfloat16, as its weights are, the chain takes two products at a time (AVX512-BF16).

A tile of rows and panels stays in registers while the inputs go by. Rows are parted evenly over tiles, and all tiles of
a few panels are computed before the next panels are read, so weights come from memory once for as many rows as stay in
a core's own caches (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from llvmlite import ir

from qpdsl.executor.kernels.llvm.kernel_code import F32, I1, I8, I32, KernelCode, Value, Variable
from qpdsl.executor.kernels.llvm.panel_code import LINE_BYTES, GroupCode, emit_pair, emit_raw_pair
from qpdsl.executor.kernels.llvm.panels import STEP, FloatPanels, GroupedPanels, Panels

# Rows of a tile of a single panel: the last few panels of a thread's share are computed so.
_FLOAT_ROWS, _GROUPED_ROWS = 8, 4
# Inputs of a turn of a tile's loop: a cache line of each panel, or more.
_UNROLLED = 4
# The weights of a block, in bytes: those that are widened for it stay in a core's nearest cache, others in the next.
_WIDENED_BYTES, _BLOCK_BYTES = 1 << 14, 1 << 17
# The rows of a block, and the bytes of rows that stay in a core's own caches while all panels go by.
_BLOCK_ROWS, _NEAR_BYTES = 96, 1 << 19
# With so many tiles or more in a block, a tile prefetches one of as many parts of what comes next: a part too much is
# cheaper than waiting for what was prefetched too late, or all at once.
_FETCHES = 4
# Weights that are not float32 are widened once for more tiles of rows, instead of in each.
_FLOAT_TILES, _GROUPED_TILES = 2, 8
_WIDE = FloatPanels(torch.float32)


@dataclass(frozen=True, slots=True)
class TileSize:
    """How many rows and panels are computed at once, for vectors of `width` floats: their sums stay in registers."""

    rows: int
    panels: int

    @classmethod
    def of(cls, width: int, form: Panels) -> TileSize:
        """That of many rows."""
        return cls.sizes(width, form)[0]

    @classmethod
    def sizes(cls, width: int, form: Panels) -> list[TileSize]:
        """Those of ever more rows and fewer panels, so that weights come from memory for all rows at once.

        Of one panel alone none: for each weight it would load a number of every row.
        """
        panels = panels_at_once(width)
        # Vectors of 8 come with 16 registers (AVX2), those of 16 and of 4 (NEON) with 32. Weights that are not float32
        # need some to be widened in.
        sums = 12 if width == 8 else 24
        if not isinstance(form, FloatPanels):
            return [cls((4 if width == 8 else 6) - 1, panels)]
        narrow = form.dtype is torch.bfloat16 and not form.rounded
        return [cls((sums - 2 * narrow) // (panels >> half), panels >> half) for half in range(panels.bit_length() - 1)]


def panels_at_once(width: int) -> int:
    """The most panels of a tile."""
    return 2 if width == 8 else 4


def prepares(panels: Panels) -> bool:
    """Whether a product reads something beside its inputs."""
    return panels.offset is not None if isinstance(panels, GroupedPanels) else panels.rounded


def prepared_numbers(panels: Panels, inputs: int) -> int:
    """How many float32 that takes in a row."""
    if not prepares(panels):
        return 0
    return inputs // panels.group if isinstance(panels, GroupedPanels) else inputs // 2


def emit_prepare(module: ir.Module, name: str, panels: Panels, width: int) -> None:
    """What a product reads of each row beside its inputs: the sums of their groups, or themselves in bfloat16.

    Arguments: x float32 [T, row]; row; prepared float32 [T, n], or bfloat16 [T, 2n]; T; n.
    """
    code = KernelCode(module, name, ("x", "@row", "prepared", "@count", "@numbers"), width)
    arguments = code.arguments
    with code.loop(0, arguments["count"]) as row:
        source = code.at(arguments["x"], code.times(row, arguments["row"]))
        target = code.at(arguments["prepared"], code.times(row, arguments["numbers"]))
        if isinstance(panels, GroupedPanels):
            _sum_groups(code, source, target, panels.group)
        else:
            _round(code, source, target)
    code.end()


def _round(code: KernelCode, source: Value, target: Value) -> None:
    with code.loop(0, code.times(code.arguments["numbers"], 2), code.width) as at:
        code.store_float(code.load(code.at(source, at)), target, at, torch.bfloat16)


def _sum_groups(code: KernelCode, source: Value, target: Value, group: int) -> None:
    with code.loop(0, code.arguments["numbers"]) as index:
        start = code.at(source, code.times(index, group))
        # Loops: a group may be all inputs of a layer, and the compiler unrolls what is short.
        if group % code.width:
            number = code.variable(F32, ir.Constant(F32, 0.0))
            with code.loop(0, group) as place:
                value = code.builder.load(code.at(start, place), typ=F32, align=4)
                number.set(code.builder.fadd(number.get(), value))
            total = number.get()
        else:
            vector = code.variable(code.vector, code.load(start))
            with code.loop(code.width, group, code.width) as place:
                vector.set(code.builder.fadd(vector.get(), code.load(code.at(start, place))))
            total = code.lane(code.total(vector.get()), 0)
        code.builder.store(total, code.at(target, index), align=4)


def emit_matmul(module: ir.Module, name: str, panels: Panels, width: int) -> None:
    """A product into `out`: factor · (x·Wᵀ + b), plus what is there where `add` is not 0.

    Arguments of the function, in order:
    x          float32 [T, row]
    row        numbers from a row of x to the next
    weights    panels
    bytes      of a panel
    bias       float32 [outputs]
    prepared   float32 [T, n], see `emit_prepare`
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
    arguments = ("x", "@row", "weights", "@bytes", "bias", "prepared", "out", "@out_row", *numbers, "factor", "@add")
    code = KernelCode(module, name, arguments, width)
    given, tile = code.arguments, TileSize.of(width, panels)
    whole = code.builder.sdiv(given["outputs"], code.number(width))
    until = code.least(given["to"], whole)
    begin = given["from"]
    length = code.builder.sub(until, begin)
    # As many tiles as fit before the last whole panel, and then single panels.
    last = code.add(begin, code.times(code.builder.sdiv(length, code.number(tile.panels)), tile.panels))
    last = code.most(last, begin)
    _all_rows(code, panels, begin, last, partial(_Neighbours, code))
    with code.loop(last, given["to"]) as panel:
        rows = _FLOAT_ROWS if isinstance(panels, FloatPanels) else _GROUPED_ROWS
        _few_rows(code, panels, _Neighbours(code, panel, 1, masked=True), rows)
    code.end()


def emit_listed(module: ir.Module, name: str, panels: Panels, width: int) -> None:
    """A product of listed panels: x·Wᵀ + b of their outputs, with the bits that `emit_matmul` gives them.

    Arguments of the function, in order:
    x          float32 [T, row]
    row        numbers from a row of x to the next
    weights    panels
    bytes      of a panel
    bias       float32 [panels, width], padded for the last panel
    prepared   as in `emit_matmul`
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
        module, name, ("x", "@row", "weights", "@bytes", "bias", "prepared", "listed", "out", *numbers), width
    )
    _all_rows(code, panels, code.arguments["from"], code.arguments["to"], partial(_Listed, code))
    code.end()


def _all_rows(code: KernelCode, form: Panels, begin: Value, last: Value, group: Callable[[Value, int], _Group]) -> None:
    """All rows of the panels from `begin` to before `last`. `group` makes one of the first panel and their number."""
    builder, count = code.builder, code.arguments["count"]
    narrow = TileSize.of(code.width, form)

    def up_to(rows: int) -> Any:
        return builder.if_else(builder.icmp_signed("<=", count, code.number(rows)))

    def in_one_tile(least: int, sizes: Sequence[TileSize]) -> None:
        if not sizes:
            in_few_tiles()
            return
        size = sizes[0]
        with up_to(size.rows) as (fits, more):
            with fits, code.loop(begin, last, size.panels) as panel:
                of = group(panel, size.panels)
                _switch(code, count, range(least, size.rows + 1), partial(_whole_tile, code, form, of))
            with more:
                in_one_tile(size.rows + 1, sizes[1:])

    def in_few_tiles() -> None:
        if _as_stored(form):
            in_blocks()
            return
        with up_to((_GROUPED_TILES if isinstance(form, GroupedPanels) else _FLOAT_TILES) * narrow.rows) as (few, many):
            with few, code.loop(begin, last, narrow.panels) as panel:
                _few_rows(code, form, group(panel, narrow.panels), narrow.rows)
            with many:
                in_blocks()

    def in_blocks() -> None:
        blocks = _GroupedBlocks(code, form) if isinstance(form, GroupedPanels) else _FloatBlocks(code, form)
        step = near_rows(code, code.arguments["inputs"])
        with code.loop(0, count, step) as first, code.loop(begin, last, blocks.size.panels) as panel:
            blocks.emit(group(panel, blocks.size.panels), first, code.least(code.add(first, step), count))

    if isinstance(form, GroupedPanels) and form.group > _block_inputs(code.width):
        with code.loop(begin, last, narrow.panels) as panel:
            _few_rows(code, form, group(panel, narrow.panels), narrow.rows)
    else:
        in_one_tile(1, [] if isinstance(form, GroupedPanels) else TileSize.sizes(code.width, form))


def _as_stored(form: Panels) -> bool:
    """Whether weights are multiplied as they lie in panels."""
    return form == _WIDE or (isinstance(form, FloatPanels) and form.rounded)


def near_rows(code: KernelCode, inputs: Value) -> Value:
    """How many rows of so many inputs stay in a core's own caches: others come after all panels went by for these."""
    blocks = code.builder.sdiv(code.number(_NEAR_BYTES // (4 * _BLOCK_ROWS)), inputs)
    return code.times(code.most(blocks, 1), _BLOCK_ROWS)


def _block_inputs(width: int, size: int = _WIDENED_BYTES) -> int:
    """The inputs of a block whose weights take `size` bytes."""
    return size // (4 * panels_at_once(width) * width)


def _few_rows(code: KernelCode, form: Panels, group: _Group, most: int) -> None:
    """All rows of a group in tiles of up to `most` rows, each over all inputs."""
    _tiles(code, code.arguments["count"], most, lambda _, first, rows: _whole_tile(code, form, group, rows, first))


def _whole_tile(code: KernelCode, form: Panels, group: _Group, rows: int, first: Value | None = None) -> None:
    tile = _Tile(code, group, code.number(0) if first is None else first, rows)
    if isinstance(form, FloatPanels):
        sums = tile.zeros()
        everything = _Part(code.number(0), code.arguments["inputs"], group.weights)
        tile.add_floats(sums, form, everything, partial(tile.prefetch, form))
    else:
        sums = tile.grouped(form)
    for (row, number), total in sums.items():
        group.store(code.add(tile.first, row), number, total.get())


def _tiles(code: KernelCode, count: Value, most: int, tile: Callable[[Value, Value, int], None]) -> None:
    """`count` rows in tiles of up to `most`, whose numbers of rows differ by one at most.

    `tile`: of its number, its first row and its number of rows.
    """
    builder, tiles = code.builder, _parted(code, count, code.number(most))
    with code.loop(0, tiles) as index:
        first = builder.sdiv(code.times(count, index), tiles)
        after = builder.sdiv(code.times(count, code.add(index, 1)), tiles)
        _switch(code, builder.sub(after, first), range(1, most + 1), lambda rows: tile(index, first, rows))


def _parted(code: KernelCode, count: Value, size: Value) -> Value:
    """Into how many parts of up to `size` a number is parted."""
    return code.builder.sdiv(code.add(count, size, -1), size)


def _switch(code: KernelCode, value: Value, cases: Iterable[int], emit: Callable[[int], None]) -> None:
    builder = code.builder
    end = builder.append_basic_block("end")
    switch = builder.switch(value, end)
    for number in cases:
        block = builder.append_basic_block(f"rows {number}")
        switch.add_case(code.number(number), block)
        builder.position_at_end(block)
        emit(number)
        builder.branch(end)
    builder.position_at_end(end)


class _Group(Protocol):
    """Panels that are computed at once: the addresses of their weights, and of those to prefetch meanwhile."""

    weights: list[Value]
    following: list[Value]

    def store(self, row: Value, number: int, value: Value) -> None:
        """Finishes an output vector of a row: the sums of panel `number` of the group."""

    def expect(self, first: Value, rows: int) -> None:
        """Prefetches what the outputs of rows are added to, if it may lie far from the core."""


class _Neighbours:
    """The `panels` panels from `panel` on. With `masked`, it may be the last, which has fewer outputs than lanes."""

    def __init__(self, code: KernelCode, panel: Value, panels: int, *, masked: bool = False) -> None:
        self._code, self._panel, self._masked = code, panel, masked
        size = code.arguments["bytes"]
        first = code.at(code.arguments["weights"], code.builder.mul(panel, size), I8)
        self.weights = [code.at(first, code.times(size, number), I8) for number in range(panels)]
        # At least as far as a tile of all panels: what is prefetched for one panel would come too late.
        ahead = code.times(size, panels_at_once(code.width))
        self.following = [code.at(weights, ahead, I8) for weights in self.weights]

    def store(self, row: Value, number: int, value: Value) -> None:
        code, builder, arguments = self._code, self._code.builder, self._code.arguments
        factor = code.broadcast(arguments["factor"])
        column, target = self._target(row, number)
        lanes = code.below(builder.sub(arguments["outputs"], column)) if self._masked else None
        value = builder.fadd(value, code.load_some(code.at(arguments["bias"], column), lanes))
        before = code.variable(code.vector, code.constant(0.0))
        with builder.if_then(self._adds()):
            before.set(code.load_some(target, lanes))
        code.store_some(code.fma(value, factor, before.get()), target, lanes)

    def expect(self, first: Value, rows: int) -> None:
        code = self._code
        with code.builder.if_then(self._adds()):
            for row in range(rows):
                for number in range(0, len(self.weights), max(1, LINE_BYTES // (4 * code.width))):
                    code.prefetch(self._target(code.add(first, row), number)[1], writes=True)

    def _adds(self) -> Value:
        return self._code.builder.trunc(self._code.arguments["add"], I1)

    def _target(self, row: Value, number: int) -> tuple[Value, Value]:
        """The first output of panel `number`, and where it lies in a row of all."""
        code, arguments = self._code, self._code.arguments
        column = code.times(code.add(self._panel, number), code.width)
        return column, code.at(code.at(arguments["out"], code.builder.mul(row, arguments["out_row"])), column)


class _Listed:
    """The panels that the list names from `place` on; those after `to` repeat the last."""

    def __init__(self, code: KernelCode, place: Value, panels: int) -> None:
        self._code, self._place = code, place
        given = code.arguments

        def numbers(start: int, end: Value) -> list[Value]:
            last = code.add(end, -1)
            places = [code.least(code.add(place, start + number), last) for number in range(panels)]
            return [code.integer(given["listed"], at, I32) for at in places]

        def weights(of: list[Value]) -> list[Value]:
            return [code.at(given["weights"], code.builder.mul(number, given["bytes"]), I8) for number in of]

        self._numbers = numbers(0, given["to"])
        self.weights = weights(self._numbers)
        self.following = weights(numbers(panels_at_once(code.width), given["end"]))

    def store(self, row: Value, number: int, value: Value) -> None:
        code, given = self._code, self._code.arguments
        bias = code.load(code.at(given["bias"], code.times(self._numbers[number], code.width)))
        start = code.times(code.builder.sub(self._place, given["from"]), code.width)
        target = code.at(given["out"], code.builder.mul(row, given["out_row"]))
        target = code.at(target, code.add(start, number * code.width))
        code.store(code.builder.fadd(value, bias), target)

    def expect(self, first: Value, rows: int) -> None:
        """The outputs of a block of ids stay near."""


# By row and panel of a tile: sums, and where they wait.
_Sums = dict[tuple[int, int], Variable]
_Places = dict[tuple[int, int], Value]


@dataclass(frozen=True, slots=True)
class _Part:
    """The inputs of a block from `begin` to before `end`, and the address of the weights of input 0 in each panel."""

    begin: Value
    end: Value
    weights: list[Value]


class _Blocks(ABC):
    """Many rows of a group: a block of rows at a time, and of these a block of inputs at a time.

    The sums of a row go on where the block of inputs before left them: one chain over all inputs.
    """

    def __init__(self, code: KernelCode, inputs: int) -> None:
        """`inputs` of a block."""
        self._code, self._inputs = code, inputs
        self.size = TileSize.of(code.width, _WIDE)
        self._sums = code.array(F32, _BLOCK_ROWS * self.size.panels * code.width)

    def emit(self, group: _Group, start: Value, stop: Value) -> None:
        """The rows from `start` to before `stop`."""
        code = self._code
        with code.loop(start, stop, _BLOCK_ROWS) as top:
            self._rows(group, top, code.least(code.builder.sub(stop, top), _BLOCK_ROWS))

    def _rows(self, group: _Group, top: Value, rows: Value) -> None:
        """The block of so many `rows` from `top` on."""
        code, given = self._code, self._code.arguments
        with code.loop(0, given["inputs"], self._inputs) as begin:
            end = code.least(code.add(begin, self._inputs), given["inputs"])
            part = _Part(begin, end, self._widened(group, begin, end))

            def tile(index: Value, first: Value, count: int) -> None:
                of = _Tile(code, group, code.add(top, first), count)
                self._tile(of, {cell: self._place(code.add(first, cell[0]), cell[1]) for cell in of.cells}, part, index)

            _tiles(code, rows, self.size.rows, tile)

    @abstractmethod
    def _widened(self, group: _Group, begin: Value, end: Value) -> list[Value]:
        """Makes the weights of a part of the inputs float32, which changes no bit of a product.

        Returns where those of input 0 would be in each panel.
        """

    @abstractmethod
    def _tile(self, tile: _Tile, places: _Places, part: _Part, index: Value) -> None:
        """Adds a part of the inputs to the sums of tile `index` of the block, which wait at `places` between parts."""

    def _place(self, row: Value, number: int) -> Value:
        """The address of the sums of panel `number` in a row of the block."""
        code = self._code
        return code.at(self._sums, code.times(code.add(code.times(row, self.size.panels), number), code.width))

    def _room(self) -> Value:
        """The address of room for the weights of a block."""
        return self._code.array(F32, self._inputs * self.size.panels * self._code.width)

    def _targets(self, room: Value, begin: Value) -> list[Value]:
        """Where the weights of input 0 would be in the room, if those of input `begin` are the first."""
        code, size = self._code, self._inputs * self._code.width
        targets = [code.at(room, number * size) for number in range(self.size.panels)]
        return [code.at(target, code.times(begin, -code.width)) for target in targets]


class _FloatBlocks(_Blocks):
    def __init__(self, code: KernelCode, form: FloatPanels) -> None:
        as_stored = _as_stored(form)
        super().__init__(code, _block_inputs(code.width, _BLOCK_BYTES if as_stored else _WIDENED_BYTES))
        self._form = form
        self._multiplied = form if as_stored else _WIDE
        self._wide = None if as_stored else self._room()
        # How many tiles share the prefetching.
        self._turns: Value = None

    def _widened(self, group: _Group, begin: Value, end: Value) -> list[Value]:
        if self._wide is None:
            return group.weights
        code, targets = self._code, self._targets(self._wide, begin)
        with code.loop(begin, end, 2) as place:
            for source, target in zip(group.weights, targets, strict=True):
                for step, value in enumerate(emit_pair(code, self._form, source, place)):
                    code.store(value, code.at(target, code.times(code.add(place, step), code.width)))
        return targets

    def _tile(self, tile: _Tile, places: _Places, part: _Part, index: Value) -> None:
        code, builder, sums = self._code, self._code.builder, tile.zeros()
        tile.group.expect(tile.first, len(tile.inputs))
        with builder.if_then(builder.icmp_signed(">", part.begin, code.number(0))):
            for cell, total in sums.items():
                total.set(code.load(places[cell]))

        def prefetch(start: Value, inputs: int) -> None:
            step = code.add(builder.lshr(start, code.number(inputs.bit_length() - 1)), index)
            is_own = builder.icmp_signed("==", builder.and_(step, code.add(self._turns, -1)), code.number(0))
            with builder.if_then(is_own):
                tile.prefetch(self._form, start, inputs)

        tile.add_floats(sums, self._multiplied, part, prefetch)
        with builder.if_else(builder.icmp_signed("==", part.end, code.arguments["inputs"])) as (last, more):
            with last:
                for (row, number), total in sums.items():
                    tile.group.store(code.add(tile.first, row), number, total.get())
            with more:
                for cell, total in sums.items():
                    code.store(total.get(), places[cell])

    def _rows(self, group: _Group, top: Value, rows: Value) -> None:
        code = self._code
        many = code.builder.icmp_signed(">", rows, code.number((_FETCHES - 1) * self.size.rows))
        self._turns = code.builder.select(many, code.number(_FETCHES), code.number(1))
        super()._rows(group, top, rows)


class _GroupedBlocks(_Blocks):
    """Grouped weights: their codes are widened, and the scales and offsets of the groups beside them."""

    def __init__(self, code: KernelCode, form: GroupedPanels) -> None:
        inputs = _block_inputs(code.width)
        super().__init__(code, inputs - inputs % form.group)
        self._form, self._wide = form, self._room()
        lanes = self.size.panels * code.width
        self._factors = [code.array(F32, self._inputs // form.group * lanes) for _ in range(2)]

    def _widened(self, group: _Group, begin: Value, end: Value) -> list[Value]:
        code, form, targets = self._code, self._form, self._targets(self._wide, begin)
        groups = [code.builder.sdiv(bound, code.number(form.group)) for bound in (begin, end)]
        with code.loop(*groups) as index:
            place, first = GroupCode(code, form, index), code.times(index, form.group)
            for number, panel in enumerate(group.weights):
                for factors, value in zip(self._factors, (place.scale(panel), place.shift(panel)), strict=True):
                    if value is not None:
                        code.store(value, self._factor(factors, code.builder.sub(index, groups[0]), number))
            with code.loop(0, form.group, STEP) as step:
                for source, following, target in zip(group.weights, group.following, targets, strict=True):
                    place.prefetch(following, step)
                    for offset, value in enumerate(place.codes(source, step)):
                        code.store(value, code.at(target, code.times(code.add(first, step, offset), code.width)))
        return targets

    def _rows(self, group: _Group, top: Value, rows: Value) -> None:
        code, panels = self._code, range(self.size.panels)
        with code.loop(0, code.times(rows, len(panels) * code.width), code.width) as at:
            code.store(code.constant(0.0), code.at(self._sums, at))
        super()._rows(group, top, rows)
        with code.loop(0, rows) as row:
            for number in panels:
                group.store(code.add(top, row), number, code.load(self._place(row, number)))

    def _tile(self, tile: _Tile, places: _Places, part: _Part, index: Value) -> None:
        code, form = self._code, self._form
        groups = [code.builder.sdiv(bound, code.number(form.group)) for bound in (part.begin, part.end)]
        with code.loop(*groups) as group:
            sums, begin = tile.zeros(), code.times(group, form.group)
            tile.add_floats(sums, _WIDE, _Part(begin, code.add(begin, form.group), part.weights))
            within = code.builder.sub(group, groups[0])
            scales, shifts = (
                [code.load(self._factor(factors, within, number)) for number in range(self.size.panels)]
                for factors in self._factors
            )
            inputs = tile.inputs_of(group, form)
            for (row, number), place in places.items():
                total = code.fma(sums[row, number].get(), scales[number], code.load(place))
                code.store(code.fma(inputs[row], shifts[number], total) if inputs else total, place)

    def _factor(self, factors: Value, group: Value, number: int) -> Value:
        """The address of the factors of a group of the block in panel `number`."""
        code = self._code
        return code.at(factors, code.times(code.add(code.times(group, self.size.panels), number), code.width))


class _Tile:
    """The code of `rows` rows from `first` on over a group of panels."""

    def __init__(self, code: KernelCode, group: _Group, first: Value, rows: int) -> None:
        self._code, self.group, self.first = code, group, first
        arguments, builder = code.arguments, code.builder
        self.inputs = [
            code.at(arguments["x"], builder.mul(code.add(first, row), arguments["row"])) for row in range(rows)
        ]
        self.cells = [(row, number) for row in range(rows) for number in range(len(group.weights))]

    def zeros(self) -> _Sums:
        code = self._code
        return {cell: code.variable(code.vector, code.constant(0.0)) for cell in self.cells}

    def add_floats(
        self,
        sums: _Sums,
        form: FloatPanels,
        part: _Part,
        prefetch: Callable[[Value, int], None] | None = None,
    ) -> None:
        """Adds the products of the inputs of a part, with its weights of that form."""
        code, turn = self._code, 2 if form.rounded else _UNROLLED
        with code.loop(part.begin, part.end, turn) as start:
            if prefetch is not None:
                prefetch(start, turn)
            for step in range(0, turn, 2):
                place = code.add(start, step)
                if form.rounded:
                    self._accumulate_pairs(sums, place, [emit_raw_pair(code, panel, place) for panel in part.weights])
                    continue
                pairs = [emit_pair(code, form, panel, place) for panel in part.weights]
                for number, values in enumerate(zip(*pairs, strict=True)):
                    self._accumulate(sums, code.add(place, number), values)

    def prefetch(self, form: FloatPanels, start: Value, inputs: int) -> None:
        """Prefetches what the next panels have in the place of so many inputs.

        The hardware prefetches within pages of memory only, and a panel has but a few.
        """
        code = self._code
        size = code.width * form.dtype.itemsize
        for panel in self.group.following:
            address = code.at(panel, code.times(start, size), I8)
            for line in range(0, inputs * size, LINE_BYTES):
                code.prefetch(code.at(address, line, I8))

    def _accumulate(self, sums: _Sums, place: Value, weights: Sequence[Value]) -> None:
        """One input of each row: `place` is its number, `weights` are its weights in each panel."""
        code = self._code
        for row, source in enumerate(self.inputs):
            value = code.broadcast(code.at(source, place))
            for number, weight in enumerate(weights):
                total = sums[row, number]
                total.set(code.fma(value, weight, total.get()))

    def _accumulate_pairs(self, sums: _Sums, place: Value, weights: Sequence[Value]) -> None:
        """Two inputs of each row, from `place` on, which is even."""
        code, arguments = self._code, self._code.arguments
        number = code.builder.sdiv(arguments["inputs"], code.number(2))
        at = code.builder.sdiv(place, code.number(2))
        for row in range(len(self.inputs)):
            source = code.at(arguments["prepared"], code.builder.mul(code.add(self.first, row), number))
            pair = code.broadcast(code.at(source, at))
            for panel, weight in enumerate(weights):
                total = sums[row, panel]
                total.set(code.add_pairs(pair, weight, total.get()))

    def grouped(self, form: GroupedPanels) -> _Sums:
        code = self._code
        totals = self.zeros()
        weights = self.group.weights
        with code.loop(0, code.builder.sdiv(code.arguments["inputs"], code.number(form.group))) as group:
            sums = self.zeros()
            place = GroupCode(code, form, group)
            with code.loop(0, form.group, STEP) as step:
                for panel in self.group.following:
                    place.prefetch(panel, step)
                at = code.add(code.times(group, form.group), step)
                for number, values in enumerate(zip(*[place.codes(panel, step) for panel in weights], strict=True)):
                    self._accumulate(sums, code.add(at, number), values)
            scales, shifts = [place.scale(panel) for panel in weights], [place.shift(panel) for panel in weights]
            inputs = self.inputs_of(group, form)
            for (row, number), total in totals.items():
                total.set(code.fma(sums[row, number].get(), scales[number], total.get()))
                if inputs:
                    total.set(code.fma(inputs[row], shifts[number], total.get()))
        return totals

    def inputs_of(self, group: Value, form: GroupedPanels) -> list[Value]:
        """The sums of a group's inputs in each row; nothing where there are no offsets."""
        code, arguments = self._code, self._code.arguments
        if form.offset is None:
            return []
        sums, groups = arguments["prepared"], code.builder.sdiv(arguments["inputs"], code.number(form.group))
        rows = [code.add(self.first, row) for row in range(len(self.inputs))]
        return [code.broadcast(code.at(sums, code.add(code.times(row, groups), group))) for row in rows]
