"""Attention of neighbouring queries of a sequence, such as those of a prompt, with a query in each lane.

A tile is as many queries as a vector has lanes, times a few query heads that share a KV head. Its queries are laid out
anew once, one number of each in a vector. A number of a key or value then comes from where it lies to all lanes, and is
used for every head of the tile, while sums stay in registers (Goto and van de Geijn, 2008, as for products). Keys that
no query of the tile sees are not read, and only the blocks at either end have a mask.

A query has the bits that it has by itself (`attention.py`): its products with a key are summed in the same tree, its
weights have the same maximum and are summed by the same positions, and its values are added up one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

import torch
from llvmlite import ir

from qpdsl.executor.kernels.llvm.cache import KEY, VALUE, Cache, HeadShape
from qpdsl.executor.kernels.llvm.kernel_code import F32, I8, I32, I64, POINTER, KernelCode, Value, Variable
from qpdsl.executor.kernels.llvm.panel_code import LINE_BYTES
from qpdsl.executor.kernels.llvm.scores import Scores

# Query heads of a tile.
_HEADS = 4
# Positions whose weights are made, in place of their scores, and used at once: they stay in a core's nearest cache,
# with their values.
_BLOCK = 64
# Weights that are made in turns.
_EXPONENTIALS = 4
# With more vectors in a key, enough products are added up between two stores of sums.
_LONG = 8


@dataclass(frozen=True, slots=True)
class TileShape:
    """What a tile of `heads` query heads keeps in registers, and in its scratch.

    keys:   whose scores are made at once
    lanes:  of a key's vectors that are added up at once, each over all vectors
    values: numbers of a value that are added up at once
    """

    shape: HeadShape
    width: int
    heads: int

    @property
    def lanes(self) -> int:
        return 1 if self.shape.dim // self.width >= _LONG else 2

    @property
    def keys(self) -> int:
        return gcd(self._most(self.lanes * self.heads), self.shape.page_size)

    @property
    def page(self) -> int:
        """Neighbours whose values are looked up at once."""
        return gcd(self.width, self.shape.page_size)

    @property
    def values(self) -> int:
        return min(self._most(self.heads), self.width)

    def _most(self, sums: int) -> int:
        """The largest power of two of which so many times as many sums leave registers for what they are made of."""
        most = (12 if self.width == 8 else 24) // sums
        return max(1, 1 << (most.bit_length() - 1))

    @property
    def row(self) -> int:
        """Numbers of a vector for each head."""
        return self.heads * self.width

    def parts(self, positions: int) -> dict[str, int]:
        """The parts of a scratch over so many positions, and their numbers."""
        shape = self.shape
        return {
            "queries": shape.dim * self.row,
            "partial": self.width // self.lanes * self.keys * self.row,
            "keys": self.keys * shape.dim,
            "peaks": self.row,
            "totals": self.width // shape.block(self.width) * self.row,
            "values": _BLOCK * shape.value_dim,
            "sums": shape.value_dim * self.row,
            "scores": (positions + 2 * self.width) * self.row,
        }


def tile_shape(shape: HeadShape, width: int) -> TileShape:
    """The tiles of the query heads of a KV head: all have as many, and the last may have some of the one before."""
    tiles = -(-shape.fold // _HEADS)
    return TileShape(shape, width, -(-shape.fold // tiles))


def tile_scratch(shape: HeadShape, width: int, positions: int) -> int:
    """The numbers of a scratch for tiles over so many positions."""
    return sum(tile_shape(shape, width).parts(positions).values())


class QueryTile:
    """The code for up to `width` queries of a sequence, the first in `row`, over KV head `head`.

    count, last: how many tokens the first of them sees, and the last
    pages:       the address of the sequence's page table
    """

    def __init__(
        self,
        code: KernelCode,
        shape: HeadShape,
        scores: Scores,
        head: Value,
        row: Value,
        count: Value,
        last: Value,
        pages: Value,
    ) -> None:
        self._code, self._shape, self._scores = code, shape, scores
        self._head, self._row, self._count, self._last = head, row, count, last
        self._pages = pages
        self._cache = Cache(code, shape.cache, code.arguments["rows"])
        self._scaling = code.broadcast(code.arguments["scaling"])
        builder, width = code.builder, code.width
        # Positions from `low` on are seen by some, those from `inner` to before `count` by all.
        self._low, self._inner = scores.least(code, count), scores.least(code, last)
        self._begin = builder.and_(self._low, code.number(-width))
        self._end = builder.and_(code.add(last, width - 1), code.number(-width))
        lanes = ir.Constant(code.integers, [*range(width)])
        self._counts = builder.add(self._narrow(count), lanes)
        window = self._narrow(code.least(code.arguments["window"], 1 << 30))
        if scores.chunked:
            ends = builder.sub(self._counts, code.bits(1))
            self._least = builder.mul(builder.sdiv(ends, window), window)
        else:
            least, zero = builder.sub(self._counts, window), code.bits(0)
            self._least = builder.select(builder.icmp_signed(">", least, zero), least, zero)
        self._values = code.array(I64, _BLOCK)
        self._tile = tile_shape(shape, width)
        self._scratch: dict[str, Value] = {}
        at = 0
        for name, size in self._tile.parts(0).items():
            self._scratch[name] = code.at(code.arguments["scratch"], at)
            at += size
        self._first: Value = None

    def emit(self) -> None:
        """All query heads of the KV head."""
        code, heads, fold = self._code, self._tile.heads, self._shape.fold
        with code.loop(0, fold, heads) as first:
            self._first = code.least(first, fold - heads)
            self._heads()

    def _heads(self) -> None:
        code = self._code
        self._turn_queries()
        self._score_all()
        for name in ("totals", "sums"):
            self._fill(name, 0, self._tile.parts(0)[name], 0.0)
        with code.loop(self._begin, self._end, _BLOCK) as start:
            stop = code.least(code.add(start, _BLOCK), self._end)
            self._weigh(start, stop)
            self._add_up(start, stop)
        self._write()

    # Queries

    def _turn_queries(self) -> None:
        """Lays the queries out as `_score` reads them."""
        code, tile, width = self._code, self._tile, self._code.width
        vectors = self._shape.dim // width
        rows = [code.builder.mul(row, code.arguments["row"]) for row in self._rows()]
        with code.loop(0, tile.heads) as number:
            start = code.times(self._query_head(number), self._shape.dim)
            with code.loop(0, vectors) as part:
                source = code.at(code.arguments["queries"], code.add(start, code.times(part, width)))
                turned = code.transposed([code.load(code.at(source, row)) for row in rows])
                for lane, value in enumerate(turned):
                    group, within = divmod(lane, tile.lanes)
                    place = code.times(code.add(part, group * vectors), tile.lanes)
                    code.store(
                        value, self._at("queries", code.add(code.times(code.add(place, within), tile.heads), number))
                    )

    def _query_head(self, number: int | Value) -> Value:
        """The place of a head of the tile in a row of queries."""
        code = self._code
        return code.add(code.times(code.add(self._first, number), self._shape.kv_heads), self._head)

    # Scores

    def _score_all(self) -> None:
        code, builder, tile = self._code, self._code.builder, self._tile
        peaks = [code.variable(code.vector, code.constant(float("-inf"))) for _ in range(tile.heads)]
        first = builder.and_(self._low, code.number(-tile.keys))
        after = builder.and_(code.add(self._last, tile.keys - 1), code.number(-tile.keys))
        self._fill("scores", self._place(self._begin), self._place(first), float("-inf"))
        with code.loop(first, after, tile.keys) as position:
            self._prefetch(code.least(code.add(position, tile.keys), code.add(self._last, -1)))
            turn = builder.udiv(builder.sub(position, first), code.number(tile.keys))
            with builder.if_then(builder.icmp_signed("<", turn, code.number(code.width))):
                self._prefetch_row(turn)
            keys, scales = zip(*self._run(KEY, position, tile.keys, self._at("keys", 0)), strict=True)
            self._multiply(keys)
            self._finish(position, scales, peaks)
        self._fill("scores", self._place(after), self._place(self._end), float("-inf"))
        for head, peak in enumerate(peaks):
            highest = peak.get()
            if self._scores.sinks:
                highest = code.maximum(highest, self._of_head("sinks", head))
            code.store(highest, self._at("peaks", head))

    def _run(self, which: int, position: Value, count: int, room: Value) -> list[tuple[Value, Value | None]]:
        """Where each of so many neighbouring keys or values lies as floats, and its scale.

        In the room if they are stored otherwise. They share a page, and one of them is seen.
        """
        code, shape = self._code, self._shape
        page, token = self._place_of(position)
        tokens = [(page, code.add(token, number)) for number in range(count)]
        sources = [self._cache.head(*token, which, self._head) for token in tokens]
        scales = [self._cache.scale(*token, which, self._head) for token in tokens]
        if shape.kind == "plain" and shape.dtype is torch.float32:
            return [*zip(sources, scales, strict=True)]
        numbers = shape.dim if which == KEY else shape.value_dim
        targets = [code.at(room, number * numbers) for number in range(count)]
        for source, target in zip(sources, targets, strict=True):
            for part in range(0, numbers, code.width):
                code.store(self._cache.load(source, which, part), code.at(target, part))
        return [*zip(targets, scales, strict=True)]

    def _prefetch(self, position: Value) -> None:
        """Prefetches the keys that are scored with that of a position: pages are scattered."""
        code = self._code
        page, token = self._place_of(code.builder.and_(position, code.number(-self._tile.keys)))
        for number in range(self._tile.keys):
            key = self._cache.head(page, code.add(token, number), KEY, self._head)
            for line in range(0, self._shape.cache.head_bytes[KEY], LINE_BYTES):
                code.prefetch(code.at(key, line, I8), near=True)

    def _prefetch_row(self, number: Value) -> None:
        """Prefetches a query of the next tile, and where that of this one is written: whole rows are far apart."""
        code, arguments, shape = self._code, self._code.arguments, self._shape
        following = code.times(code.add(self._row, number, code.width), arguments["row"])
        own = code.times(code.add(self._row, number), shape.attended)
        for head in range(self._tile.heads):
            place = self._query_head(head)
            for address, begin, size, writes in (
                (arguments["queries"], code.add(following, code.times(place, shape.dim)), shape.dim, False),
                (arguments["out"], code.add(own, code.times(place, shape.value_dim)), shape.value_dim, True),
            ):
                for part in range(0, size, LINE_BYTES // 4):
                    code.prefetch(code.at(address, code.add(begin, part)), writes=writes)

    def _multiply(self, keys: Sequence[Value]) -> None:
        """Products of queries and keys, summed over the vectors of a key, and over `lanes` neighbours of a vector."""
        code, tile, width = self._code, self._tile, self._code.width
        vectors, heads = self._shape.dim // width, range(tile.heads)
        with code.loop(0, width // tile.lanes) as group:
            sums = {
                (lane, number, head): code.variable(code.vector, code.constant(0.0))
                for lane in range(tile.lanes)
                for number in range(len(keys))
                for head in heads
            }
            start = code.times(group, vectors * tile.lanes)
            first = code.times(group, tile.lanes)
            with code.loop(0, vectors) as part:
                at = code.add(first, code.times(part, width))
                row = code.add(start, code.times(part, tile.lanes))
                for lane in range(tile.lanes):
                    place = code.times(code.add(row, lane), tile.heads)
                    queries = [code.load(self._at("queries", code.add(place, head))) for head in heads]
                    for number, key in enumerate(keys):
                        value = code.broadcast(code.at(key, code.add(at, lane)))
                        for head in heads:
                            total = sums[lane, number, head]
                            total.set(code.fma(queries[head], value, total.get()))
            place = code.times(group, len(keys) * tile.heads)
            for number in range(len(keys)):
                for head in heads:
                    total = code.pairwise([sums[lane, number, head].get() for lane in range(tile.lanes)])
                    code.store(total, self._at("partial", code.add(place, number * tile.heads + head)))

    def _finish(self, position: Value, scales: Sequence[Value | None], peaks: Sequence[Variable]) -> None:
        """The scores of keys from `position` on, -inf where a token is not visible, and their maximum."""
        code, builder, tile = self._code, self._code.builder, self._tile
        target = code.at(self._scratch["scores"], self._place(position))
        for number, scale in enumerate(scales):
            factor = self._scaling if scale is None else builder.fmul(code.splat(scale), self._scaling)
            at = self._narrow(code.add(position, number))
            visible = self._visible(at)
            for head, peak in enumerate(peaks):
                cell = number * tile.heads + head
                groups = range(code.width // tile.lanes)
                partial = [code.load(self._at("partial", group * len(scales) * tile.heads + cell)) for group in groups]
                scores = self._scores.capped(code, builder.fmul(code.pairwise(partial), factor))
                if self._scores.alibi is not None:
                    last = builder.sub(self._counts, code.bits(1))
                    scores = self._scores.biased(code, scores, self._of_head("slopes", head), at, last)
                scores = builder.select(visible, scores, code.constant(float("-inf")))
                code.store(scores, code.at(target, cell * code.width))
                peak.set(code.maximum(peak.get(), scores))

    def _visible(self, at: Value) -> Value:
        builder = self._code.builder
        return builder.and_(builder.icmp_signed("<", at, self._counts), builder.icmp_signed(">=", at, self._least))

    # Weights and values

    def _weigh(self, start: Value, stop: Value) -> None:
        """Makes the weights e^(score - highest) of a block, and adds them to the totals of their positions."""
        code, builder, tile = self._code, self._code.builder, self._tile
        scaled = self._value_scales(start, stop)
        step = code.width // self._shape.block(code.width)
        with code.loop(0, tile.heads) as head:
            highest = code.load(self._at("peaks", head))
            places = [self._at("totals", code.add(code.number(number * tile.heads), head)) for number in range(step)]
            totals = [code.variable(code.vector, code.load(place)) for place in places]
            with code.loop(start, stop, max(step, _EXPONENTIALS)) as position:
                of_block = builder.sub(position, start)
                first = code.add(code.times(builder.sub(position, self._begin), tile.heads), head)
                for begin in range(0, max(step, _EXPONENTIALS), _EXPONENTIALS):
                    numbers = range(begin, begin + _EXPONENTIALS)
                    cells = [self._at("scores", code.add(first, number * tile.heads)) for number in numbers]
                    weights = code.exp_below_zero(*(builder.fsub(code.load(cell), highest) for cell in cells))
                    for number, cell, weight in zip(numbers, cells, weights, strict=True):
                        total = totals[number % step]
                        total.set(builder.fadd(total.get(), weight))
                        code.store(scaled(weight, code.add(of_block, number)), cell)
            for place, total in zip(places, totals, strict=True):
                code.store(total.get(), place)

    def _value_scales(self, start: Value, stop: Value) -> Callable[[Value, Value], Value]:
        """Notes where the values of a block lie as floats. Returns what multiplies a weight by its value's scale."""
        code, builder, size = self._code, self._code.builder, self._tile.page
        kept: list[Value] = []
        begin = builder.and_(code.most(start, self._low), code.number(-size))
        with code.loop(begin, code.least(stop, self._last), size) as position:
            first = builder.sub(position, start)
            room = code.at(self._scratch["values"], code.times(first, self._shape.value_dim))
            for number, (place, scale) in enumerate(self._run(VALUE, position, size, room)):
                of_block = code.add(first, number)
                builder.store(builder.ptrtoint(place, I64), code.at(self._values, of_block, I64))
                if scale is not None:
                    kept = kept or [code.array(F32, _BLOCK)]
                    builder.store(scale, code.at(kept[0], of_block), align=4)

        def scaled(weight: Value, number: Value) -> Value:
            return builder.fmul(weight, code.broadcast(code.at(kept[0], number))) if kept else weight

        return scaled

    def _add_up(self, start: Value, stop: Value) -> None:
        """Adds the values of a block, each times its weights, to the sums."""
        code, builder = self._code, self._code.builder
        begin, end = code.most(start, self._low), code.least(stop, self._last)
        is_inner = builder.and_(
            builder.icmp_signed(">=", begin, self._inner), builder.icmp_signed("<=", end, self._count)
        )
        with builder.if_else(is_inner) as (inner, outer):
            with inner:
                self._add_block(start, begin, end, masked=False)
            with outer:
                self._add_block(start, begin, end, masked=True)

    def _add_block(self, start: Value, begin: Value, end: Value, *, masked: bool) -> None:
        code, builder, tile = self._code, self._code.builder, self._tile
        heads = range(tile.heads)
        with code.loop(0, self._shape.value_dim, tile.values) as first:
            places = {
                (number, head): self._at("sums", code.add(code.times(first, tile.heads), number * tile.heads + head))
                for number in range(tile.values)
                for head in heads
            }
            sums = {cell: code.variable(code.vector, code.load(place)) for cell, place in places.items()}
            with code.loop(begin, end) as position:
                row = code.at(self._scratch["scores"], self._place(position))
                weights = [code.load(code.at(row, head * code.width)) for head in heads]
                value = code.integer(self._values, builder.sub(position, start), I64)
                value = code.at(builder.inttoptr(value, POINTER), first)
                visible = self._visible(self._narrow(position)) if masked else None
                for number in range(tile.values):
                    part = code.broadcast(code.at(value, number))
                    for head in heads:
                        total = sums[number, head]
                        added = code.fma(weights[head], part, total.get())
                        total.set(added if visible is None else builder.select(visible, added, total.get()))
            for cell, total in sums.items():
                code.store(total.get(), places[cell])

    def _write(self) -> None:
        """Writes the sums, times the factors that make the sums of the weights 1."""
        code, builder, tile, width = self._code, self._code.builder, self._tile, self._code.width
        shape = self._shape
        for head in range(tile.heads):
            steps = width // shape.block(width)
            total = code.halved([code.load(self._at("totals", step * tile.heads + head)) for step in range(steps)])
            if self._scores.sinks:
                rest = builder.fsub(self._of_head("sinks", head), code.load(self._at("peaks", head)))
                total = builder.fadd(total, code.exp(rest))
            code.store(builder.fdiv(code.constant(1.0), total), self._at("totals", head))
        rows = [code.times(row, shape.attended) for row in self._rows()]
        with code.loop(0, tile.heads) as number:
            factor = code.load(self._at("totals", number))
            head = code.times(self._query_head(number), shape.value_dim)
            with code.loop(0, shape.value_dim, width) as part:
                sums = code.add(code.times(part, tile.heads), number)
                values = [code.load(self._at("sums", code.add(sums, place * tile.heads))) for place in range(width)]
                values = code.transposed([builder.fmul(value, factor) for value in values])
                target = code.at(code.arguments["out"], code.add(head, part))
                # The last row's own lane comes after those that have no query.
                for row, value in reversed([*zip(rows, values, strict=True)]):
                    code.store(value, code.at(target, row))

    def _rows(self) -> list[Value]:
        """The row of each lane's query: of lanes without one, the last query's."""
        code = self._code
        most = code.builder.sub(self._last, self._count)
        return [code.add(self._row, code.least(code.number(lane), most)) for lane in range(code.width)]

    # Places and numbers

    def _place_of(self, position: Value) -> tuple[Value, Value]:
        """The address of the layer's page that holds a position, and its place there."""
        code, size = self._code, self._code.number(self._shape.page_size)
        page = code.integer(self._pages, code.builder.udiv(position, size), I32)
        return self._cache.page(page, code.arguments["layer"]), code.builder.urem(position, size)

    def _place(self, position: Value) -> Value:
        """Where the scores of a position begin among all scores."""
        code = self._code
        return code.times(code.builder.sub(position, self._begin), self._tile.row)

    def _at(self, name: str, index: int | Value) -> Value:
        """The address of vector `index` of a part of the scratch."""
        code = self._code
        return code.at(self._scratch[name], code.times(code.number(index), code.width))

    def _fill(self, name: str, start: int | Value, stop: int | Value, value: float) -> None:
        """Fills a part of the scratch between two of its numbers."""
        code = self._code
        with code.loop(start, stop, code.width) as at:
            code.store(code.constant(value), code.at(self._scratch[name], at))

    def _of_head(self, name: str, number: int) -> Value:
        """What an argument float32 [fold, kv_heads] has for a head of the tile, in every lane."""
        return self._code.broadcast(self._code.at(self._code.arguments[name], self._query_head(number)))

    def _narrow(self, number: Value) -> Value:
        """A number as an int32 in every lane."""
        return self._code.splat(self._code.builder.trunc(number, ir.IntType(32)))
