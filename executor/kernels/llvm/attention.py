"""Paged attention on a CPU as LLVM code.

Nothing is gathered or padded: a query reads the pages of its sequence where they lie. Its result depends on its own
position and context only, so the bits are the same in any batch and however a prompt is cut into chunks.

Many queries of a sequence go into the lanes of vectors (`attention_tile.py`). Of few, or of sequences with one each, up
to `TOGETHER` go over their pages side by side: pages that they share, such as the prefix of siblings, then come from a
core's nearest cache.

In a group (`QueryGroup`) a vector holds the scores of `width / heads` tokens for a block of query heads that share a KV
head. Sums over the dimensions of a head are made by transposing (`KernelCode.sums`), the softmax runs over the vectors
of scores, and the values are added up token by token. The softmax takes two passes over stored scores. The online
softmax of FlashAttention (Dao et al., 2022) would save memory traffic, which does not matter while scores stay in a
core's cache. What a query adds up, and in what order, does not depend on the others of its group.

The last tokens of a sequence that is a path in a tree (`Paths`) are read one by one from where they lie, each into the
lane of its position: so the path has the bits of the same tokens in their places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from llvmlite import ir

from qpdsl.executor.kernels.llvm.attention_tile import QueryTile, tile_scratch
from qpdsl.executor.kernels.llvm.cache import KEY, VALUE, Cache, HeadShape, spread
from qpdsl.executor.kernels.llvm.kernel_code import F32, I1, I8, I32, I64, POINTER, KernelCode, Value, Variable
from qpdsl.executor.kernels.llvm.panel_code import LINE_BYTES
from qpdsl.executor.kernels.llvm.scores import AlibiKind, Scores

# Where vectors of a head begin; and one of a query head of a block, by both.
Parts = Iterable[int | Value]
Cell = tuple[int, int | Value]
# What to give as the window of a layer without one.
NO_WINDOW = 1 << 40
# Queries of a group. With more, what is kept for each would no longer stay in a core's nearest cache.
TOGETHER = 8
# Keys that take as long as what a query takes besides keys.
_OWN_KEYS = 16
# A larger page would push the page that is being read out of a core's cache.
_PREFETCH_BYTES = 1 << 16
# With more keys and values of a layer than these, looking up where the pages of memory are takes long: they are fetched
# for a sequence in small parts while the one before it is computed.
_MUCH_BYTES = 1 << 22
# Vector registers that hold sums while values are added up.
_SUM_REGISTERS = 16
# Above every number of a page.
_NO_PAGE = 1 << 40
# What is known of each query: its row; the first page of its sequence's table, as an address; how many tokens it sees,
# and the first of them; and with trees, the first position that may lie in another place, and the address of the
# places from there on.
_FIELDS = ("row", "pages", "count", "least", "path", "places")


def scratch_size(shape: HeadShape, width: int, table: int) -> int:
    """The numbers of a scratch for page tables of so many pages."""
    positions = table * shape.page_size
    return max(TOGETHER * positions * shape.block(width), tile_scratch(shape, width, positions))


def emit_attend(
    module: ir.Module,
    name: str,
    shape: HeadShape,
    width: int,
    sinks: bool = False,
    softcap: float | None = None,
    trees: bool = False,
    chunked: bool = False,
    alibi: AlibiKind = None,
) -> None:
    """Causal attention of rotated queries over the pages of a layer, within the last `window` positions.

    `softcap`: c maps scores s to c·tanh(s/c) (Gemma 2); None for none. `chunked`: within the chunk of `window` tokens
    that the query is in. `alibi`: see `Alibi`.

    A unit is one query and one KV head, with all query heads that share it. The units of a sequence with several
    queries are ordered by head, and threads share them out by their keys. Arguments of the function, in order:
    queries    float32 [T, row], the queries [fold, kv_heads, dim] first in each row
    row        numbers from a row of queries to the next
    rows       the rows of the cache
    pages      int32 [B, table], the page table
    context    int32 [B], the tokens of each sequence including its queries
    start      int32 [B + 1], where its queries begin
    out        float32 [T, fold, kv_heads, value_dim]
    scratch    float32 [`scratch_size`]
    table      the pages of a sequence in the page table
    layer
    sequences  B
    thread     the number of this thread
    threads    how many share the units
    scaling    float32 [1], the factor of the scores
    window     in tokens
    sinks      float32 [fold, kv_heads], a score for each head that takes weight and gives no value (gpt-oss); not read
               without `sinks`
    With `trees`, three more, as in `Paths`:
    path_start int32 [B]
    places     int32 [B, path]
    path       places of a path
    With `alibi`, two more:
    slopes     float32 [fold, kv_heads]
    factor     float32 [1]
    """
    addresses = ("queries", "@row", "rows", "pages", "context", "start", "out", "scratch")
    numbers = ("@table", "@layer", "@sequences", "@thread", "@threads", "scaling", "@window", "sinks")
    paths = ("path_start", "places", "@path") if trees else ()
    biases = ("slopes", "factor") if alibi else ()
    code = KernelCode(module, name, (*addresses, *numbers, *paths, *biases), width)
    _Units(code, shape, Scores(sinks, softcap, trees, chunked, alibi)).emit()
    code.end()


class _Units:
    """The code that goes over the units, in turns of up to `TOGETHER` queries."""

    def __init__(self, code: KernelCode, shape: HeadShape, scores: Scores) -> None:
        self._code, self._shape, self._scores = code, shape, scores
        self._scaling = code.broadcast(code.arguments["scaling"])
        self._group = QueryGroup(code, shape, scores)

    def emit(self) -> None:
        code, builder, arguments = self._code, self._code.builder, self._code.arguments
        singles = self._singles()
        units = code.times(singles, self._shape.kv_heads)
        first, last = self._share()
        self._rows(first, code.least(last, units))
        with code.loop(singles, arguments["sequences"]) as sequence:
            rows = self._rows_of(sequence)
            length, before = builder.sub(rows[1], rows[0]), code.times(rows[0], self._shape.kv_heads)
            begin = code.most(builder.sub(first, before), 0)
            end = code.least(builder.sub(last, before), code.times(length, self._shape.kv_heads))
            self._chunk(begin, end, sequence, rows)

    def _share(self) -> tuple[Value, Value]:
        """The first unit of this thread, and the unit to stop before."""
        code, builder, arguments = self._code, self._code.builder, self._code.arguments
        heads, total = self._shape.kv_heads, code.variable(I64, code.number(0))
        rows = code.integer(arguments["start"], arguments["sequences"], I32)
        first, last = code.variable(I64, code.number(0)), code.variable(I64, code.times(rows, heads))
        with builder.if_then(builder.icmp_signed(">", arguments["threads"], code.number(1))):
            with code.loop(0, arguments["sequences"]) as sequence:
                total.set(code.add(total.get(), code.times(self._keys(sequence), heads)))
            for share, cut in ((arguments["thread"], first), (code.add(arguments["thread"], 1), last)):
                cut.set(self._cut(builder.sdiv(builder.mul(total.get(), share), arguments["threads"])))
        return first.get(), last.get()

    def _cut(self, keys: Value) -> Value:
        """The first unit before which all units together take so many keys."""
        code, builder, arguments = self._code, self._code.builder, self._code.arguments
        heads, rest, own = self._shape.kv_heads, code.variable(I64, keys), code.variable(I64, code.number(1))

        def is_before(sequence: Value) -> Value:
            own.set(self._keys(sequence))
            return self._taken(rest, code.times(own.get(), heads))

        sequence = code.leading(0, arguments["sequences"], is_before)
        cut = code.variable(I64, code.times(code.integer(arguments["start"], sequence, I32), heads))
        with builder.if_then(builder.icmp_signed("<", sequence, arguments["sequences"])):
            first, last = self._rows_of(sequence)
            head, length = builder.sdiv(rest.get(), own.get()), builder.sub(last, first)
            rest.set(builder.srem(rest.get(), own.get()))
            row = code.leading(
                0, length, lambda row: self._taken(rest, self._keys_of(code.add(first, row), last, sequence))
            )
            cut.set(code.add(cut.get(), builder.mul(head, length), row))
        return cut.get()

    def _taken(self, rest: Variable, keys: Value) -> Value:
        """Whether there is a rest of so many keys; if so, they are taken from it."""
        builder, before = self._code.builder, rest.get()
        enough = builder.icmp_signed(">=", before, keys)
        rest.set(builder.select(enough, builder.sub(before, keys), before))
        return enough

    def _keys(self, sequence: Value) -> Value:
        """What the queries of a sequence take, for one KV head."""
        code, keys = self._code, self._code.variable(I64, self._code.number(0))
        first, last = self._rows_of(sequence)
        with code.loop(first, last) as row:
            keys.set(code.add(keys.get(), self._keys_of(row, last, sequence)))
        return keys.get()

    def _keys_of(self, row: Value, last: Value, sequence: Value) -> Value:
        """What one query takes: the keys that it sees, and as long as some more."""
        code, count = self._code, context_of(self._code, row, last, sequence)
        return code.add(code.most(code.builder.sub(count, self._scores.least(code, count)), 0), _OWN_KEYS)

    def _rows_of(self, sequence: Value) -> tuple[Value, Value]:
        """The first row of a sequence, and the one after its last."""
        code, start = self._code, self._code.arguments["start"]
        return code.integer(start, sequence, I32), code.integer(start, code.add(sequence, 1), I32)

    def _singles(self) -> Value:
        """How many of the first sequences have one query each."""
        code, arguments = self._code, self._code.arguments

        def is_single(number: Value) -> Value:
            following = code.add(number, 1)
            return code.builder.icmp_signed("==", code.integer(arguments["start"], following, I32), following)

        return code.leading(0, arguments["sequences"], is_single)

    def _sharing(self, number: Value, most: Value) -> Value:
        """How many sequences from `number` on have the first page of the first one: others gain nothing together."""
        code, builder, arguments = self._code, self._code.builder, self._code.arguments

        def first_page(index: Value) -> Value:
            place = builder.mul(code.add(number, index), arguments["table"])
            return code.integer(arguments["pages"], place, I32)

        page = first_page(code.number(0))
        return code.leading(1, most, lambda index: builder.icmp_signed("==", first_page(index), page))

    def _rows(self, begin: Value, end: Value) -> None:
        """Units of sequences with one query each, from `begin` to before `end`: all heads of a query, then the next.

        So a page comes from memory once.
        """
        code, builder, heads = self._code, self._code.builder, self._shape.kv_heads
        arguments, cache = code.arguments, self._shape.cache
        unit, is_fetched = code.variable(I64, begin), code.variable(I1, ir.Constant(I1, 0))
        pages = builder.mul(builder.sub(end, begin), arguments["table"])
        page_bytes = self._shape.page_size * cache.token_bytes
        is_much = builder.icmp_signed(">", pages, code.number(_MUCH_BYTES // page_bytes * heads))
        if page_bytes > _PREFETCH_BYTES:
            is_much = ir.Constant(I1, 0)
        with code.repeat(lambda: builder.icmp_signed("<", unit.get(), end)):
            number, head = (of(unit.get(), code.number(heads)) for of in (builder.sdiv, builder.srem))
            whole = builder.sdiv(builder.sub(end, unit.get()), code.number(heads))
            is_whole = builder.and_(
                builder.icmp_signed("==", head, code.number(0)), builder.icmp_signed(">", whole, code.number(0))
            )
            most = builder.select(is_whole, code.least(whole, TOGETHER), code.number(1))
            together = self._sharing(number, most)
            with code.loop(0, together) as index:
                row = code.add(number, index)
                self._group.describe(index, row, code.add(row, 1), row)
            size = builder.select(is_whole, code.number(heads), code.number(1))
            following = code.add(number, 1)
            goes_ahead = builder.and_(is_much, builder.icmp_signed("<", code.times(following, heads), end))
            table = code.at(arguments["pages"], code.times(following, arguments["table"]), I32)
            self._group.ahead = _Ahead(table, goes_ahead, is_fetched.get())
            with code.loop(head, code.add(head, size)) as kv_head:
                self._heads(kv_head, together)
            self._group.ahead = None
            is_alone = builder.icmp_signed("==", together, code.number(1))
            is_fetched.set(builder.and_(goes_ahead, builder.and_(is_whole, is_alone)))
            unit.set(code.add(unit.get(), builder.mul(together, size)))

    def _heads(self, kv_head: Value, together: Value) -> None:
        """All query heads of a KV head, for the queries that are described."""
        block = self._shape.block(self._code.width)
        for fold in range(0, self._shape.fold, block):
            heads = range(fold, min(fold + block, self._shape.fold))
            HeadBlock(self._group, heads, kv_head, together, self._scaling).emit()

    def _chunk(self, begin: Value, end: Value, sequence: Value, rows: tuple[Value, Value]) -> None:
        """Units of a sequence from `begin` to before `end`. Its queries are the rows from one to before another."""
        code, builder = self._code, self._code.builder
        first, last = rows
        length, unit = builder.sub(last, first), code.variable(I64, begin)
        with code.repeat(lambda: builder.icmp_signed("<", unit.get(), end)):
            kv_head, number = builder.sdiv(unit.get(), length), builder.srem(unit.get(), length)
            rest = code.least(builder.sub(length, number), builder.sub(end, unit.get()))
            row = code.add(first, number)
            count = context_of(code, code.add(row, code.least(rest, code.width), -1), last, sequence)
            keys = builder.sub(count, self._scores.least(code, count))
            is_tile = builder.and_(
                builder.icmp_signed(">", rest, code.number(code.width // 2)),
                builder.icmp_signed(">=", keys, code.number(self._shape.dim // 2)),
            )
            with builder.if_else(is_tile) as (tile, group):
                with tile:
                    together = code.least(rest, code.width)
                    self._tile(kv_head, row, together, last, sequence)
                    unit.set(code.add(unit.get(), together))
                with group:
                    together = code.least(rest, TOGETHER)
                    with code.loop(0, together) as index:
                        self._group.describe(index, code.add(row, index), last, sequence)
                    self._heads(kv_head, together)
                    unit.set(code.add(unit.get(), together))

    def _tile(self, kv_head: Value, row: Value, together: Value, last: Value, sequence: Value) -> None:
        """Queries of a sequence from `row` on, in lanes."""
        code, arguments = self._code, self._code.arguments
        count = context_of(code, row, last, sequence)
        pages = code.at(arguments["pages"], code.times(sequence, arguments["table"]), I32)
        end = code.add(count, together, -1)
        QueryTile(code, self._shape, self._scores, kv_head, row, count, end, pages).emit()


def context_of(code: KernelCode, row: Value, last: Value, sequence: Value) -> Value:
    """How many tokens the query in `row` of a sequence sees, whose last row is before `last`."""
    context = code.integer(code.arguments["context"], sequence, I32)
    return code.builder.sub(context, code.add(code.builder.sub(last, row), -1))


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Whether a query that is computed alone prefetches the pages of the next sequence, while it goes over its own.

    pages:      the address of the page table of that sequence
    goes:       whether it does
    is_fetched: whether its own pages were prefetched so
    """

    pages: Value
    goes: Value
    is_fetched: Value


class QueryGroup:
    """Up to `TOGETHER` queries, by their numbers."""

    def __init__(self, code: KernelCode, shape: HeadShape, scores: Scores) -> None:
        self.code, self.shape, self.scores = code, shape, scores
        self.ahead: _Ahead | None = None
        self._fields = {name: code.array(I64, TOGETHER) for name in _FIELDS}

    def describe(self, index: Value, row: Value, last: Value, sequence: Value) -> None:
        """Query `index` is in `row` of `sequence`, whose last row is before `last`."""
        code, builder, arguments = self.code, self.code.builder, self.code.arguments
        count = context_of(code, row, last, sequence)
        pages = code.at(arguments["pages"], code.times(sequence, arguments["table"]), I32)
        fields = {
            "row": row,
            "pages": builder.ptrtoint(pages, I64),
            "count": count,
            "least": self.scores.least(code, count),
        }
        if self.scores.trees:
            places = code.at(arguments["places"], code.times(sequence, arguments["path"]), I32)
            fields["path"] = code.integer(arguments["path_start"], sequence, I32)
            fields["places"] = builder.ptrtoint(places, I64)
        for name, value in fields.items():
            builder.store(value, code.at(self._fields[name], index, I64))

    def field(self, name: str, index: Value) -> Value:
        return self.code.builder.load(self.code.at(self._fields[name], index, I64), typ=I64)

    def address(self, name: str, index: Value) -> Value:
        return self.code.builder.inttoptr(self.field(name, index), POINTER)


class HeadBlock:
    """The code for a block of query heads that share KV head `head`, over `together` queries of a group."""

    def __init__(self, group: QueryGroup, heads: range, head: Value, together: Value, scaling: Value) -> None:
        code = group.code
        self.code, self.shape, self.group = code, group.shape, group
        self.heads, self.head, self.scaling = heads, head, scaling
        self.block = group.shape.block(code.width)
        self.tile = code.width // self.block
        self.cache = Cache(code, group.shape.cache, code.arguments["rows"])
        self._peaks = code.array(F32, TOGETHER * code.width)
        self._sums = code.array(F32, TOGETHER * len(heads) * group.shape.value_dim)
        # The page that was prefetched last, by its address.
        self.fetched = code.variable(I64, code.number(0))
        self._together = together

    def emit(self) -> None:
        builder = self.code.builder
        with builder.if_else(builder.icmp_signed("==", self._together, self.code.number(1))) as (alone, several):
            with alone:
                self._alone()
            with several:
                self._several()

    def _alone(self) -> None:
        """One query: what is summed up stays in registers."""
        code = self.code
        query = _Query(self, code.number(0), self.group.ahead)
        peak = code.variable(code.vector, code.constant(float("-inf")))
        with code.loop(query.first, query.last) as page:
            query.score(page, peak)
        query.weigh(peak)
        for parts in self._each_part():
            sums = {cell: code.variable(code.vector, code.constant(0.0)) for cell in self._cells(parts)}
            with code.loop(query.first, query.last) as page:
                query.add_up(page, sums)
            query.write(sums, peak)

    def _several(self) -> None:
        """What is summed up goes to memory after every page."""
        code, builder = self.code, self.code.builder
        begin, end = code.variable(I64, code.number(_NO_PAGE)), code.variable(I64, code.number(0))
        with code.loop(0, self._together) as index:
            query = _Query(self, index)
            begin.set(code.least(begin.get(), query.first))
            end.set(code.most(end.get(), query.last))
            code.store(code.constant(float("-inf")), self._peak(index))
            for parts in self._each_part():
                for cell in self._cells(parts):
                    code.store(code.constant(0.0), self._sum(index, cell))
        first, last = begin.get(), end.get()
        with code.loop(first, last) as page, code.loop(0, self._together) as index:
            query = _Query(self, index)
            with builder.if_then(query.sees(page)):
                peak = code.variable(code.vector, code.load(self._peak(index)))
                query.score(page, peak)
                code.store(peak.get(), self._peak(index))
        with code.loop(0, self._together) as index:
            peak = code.variable(code.vector, code.load(self._peak(index)))
            _Query(self, index).weigh(peak)
            code.store(peak.get(), self._peak(index))
        with code.loop(first, last) as page, code.loop(0, self._together) as index:
            query = _Query(self, index)
            with builder.if_then(query.sees(page)):
                for parts in self._each_part():
                    sums = self._loaded(index, parts)
                    query.add_up(page, sums)
                    for cell, total in sums.items():
                        code.store(total.get(), self._sum(index, cell))
        with code.loop(0, self._together) as index:
            peak = code.variable(code.vector, code.load(self._peak(index)))
            for parts in self._each_part():
                _Query(self, index).write(self._loaded(index, parts), peak)

    def _each_part(self) -> Iterator[Parts]:
        """The dimensions of a head in portions whose sums fit into registers, each by the starts of its vectors.

        Latent vectors are so wide that each of their portions would take LLVM long: a loop goes over them.
        """
        if self.shape.latent:
            with self.code.loop(0, self.shape.value_dim, self.code.width) as part:
                yield [part]
            return
        at_once = max(1, _SUM_REGISTERS // len(self.heads)) * self.code.width
        dim = self.shape.value_dim
        for at in range(0, dim, at_once):
            yield range(at, min(at + at_once, dim), self.code.width)

    def _cells(self, parts: Parts) -> list[Cell]:
        """Numbers of the heads and parts."""
        return [(number, part) for number in range(len(self.heads)) for part in parts]

    def _peak(self, index: Value) -> Value:
        return self.code.at(self._peaks, self.code.times(index, self.code.width))

    def _sum(self, index: Value, cell: Cell) -> Value:
        number, part = cell
        place = self.code.times(index, len(self.heads) * self.shape.value_dim)
        return self.code.at(self._sums, self.code.add(place, number * self.shape.value_dim, part))

    def _loaded(self, index: Value, parts: Parts) -> dict[Cell, Variable]:
        code = self.code
        return {cell: code.variable(code.vector, code.load(self._sum(index, cell))) for cell in self._cells(parts)}


class _Query:
    """The code for query `index` of a group and the heads of a block."""

    def __init__(self, of: HeadBlock, index: Value, ahead: _Ahead | None = None) -> None:
        code, shape, group = of.code, of.shape, of.group
        self._ahead = ahead
        builder, arguments = code.builder, code.arguments
        self._of, self._code, self._shape = of, code, shape
        row, offset = group.field("row", index), code.times(of.head, shape.dim)
        self._queries = code.at(arguments["queries"], code.add(code.times(row, arguments["row"]), offset))
        place = offset if shape.value_dim == shape.dim else code.times(of.head, shape.value_dim)
        self._out = code.at(arguments["out"], code.add(code.times(row, shape.attended), place))
        self._pages = group.address("pages", index)
        self._count, self._least = group.field("count", index), group.field("least", index)
        scratch = code.times(arguments["table"], shape.page_size * of.block)
        self._scratch = code.at(arguments["scratch"], builder.mul(index, scratch))
        self.first = builder.sdiv(self._least, code.number(shape.page_size))
        self.last = builder.sdiv(code.add(self._count, shape.page_size - 1), code.number(shape.page_size))
        # Pages before this one are read as they lie, the positions of the others one by one.
        self._split: Value | None = None
        if group.scores.trees:
            self._path, self._places = group.field("path", index), group.address("places", index)
            split = builder.sdiv(self._path, code.number(shape.page_size))
            self._split = code.least(code.most(split, self.first), self.last)

    def sees(self, page: Value) -> Value:
        """Whether it sees tokens of that page of its sequence."""
        builder = self._code.builder
        return builder.and_(builder.icmp_signed(">=", page, self.first), builder.icmp_signed("<", page, self.last))

    def score(self, page: Value, peak: Variable) -> None:
        """Stores the scores of a page, -inf where a token is not visible. `peak` is their maximum, lane by lane."""
        code, builder, of, size = self._code, self._code.builder, self._of, self._shape.page_size

        def as_it_lies() -> None:
            address = self._page(page)
            self._prefetch(page)
            with code.loop(0, size, of.tile) as at:
                self._prefetch_ahead(page, KEY, at, of.tile)
                tokens = [(address, code.add(at, number)) for number in range(of.tile)]
                self._score(page, at, tokens, peak)

        if self._split is None:
            as_it_lies()
            return
        with builder.if_else(builder.icmp_signed("<", page, self._split)) as (lies, scattered):
            with lies:
                as_it_lies()
            with scattered, code.loop(0, size, of.tile) as at:
                position = code.add(code.times(page, size), at)
                self._score(page, at, [self._token(code.add(position, number)) for number in range(of.tile)], peak)

    def weigh(self, peak: Variable) -> None:
        """Turns the scores into weights e^(score - highest), and the peak into the factor that makes their sum 1."""
        code, builder, block = self._code, self._code.builder, self._of.block
        highest = code.folded(peak.get(), block, code.maximum)
        sinks = self._sinks() if self._of.group.scores.sinks else None
        if sinks is not None:
            highest = code.maximum(highest, sinks)
        total = code.variable(code.vector, code.constant(0.0))
        pages = builder.sub(self.last, self.first)
        with code.loop(0, code.times(pages, self._shape.page_size * block), code.width) as at:
            place = code.at(self._scratch, at)
            weights = code.exp_below_zero(builder.fsub(code.load(place), highest))[0]
            code.store(weights, place)
            total.set(builder.fadd(total.get(), weights))
        weight = code.folded(total.get(), block, builder.fadd)
        if sinks is not None:
            weight = builder.fadd(weight, code.exp(builder.fsub(sinks, highest)))
        peak.set(builder.fdiv(code.constant(1.0), weight))

    def add_up(self, page: Value, sums: dict[Cell, Variable]) -> None:
        """Adds the values of a page, each times its weights, to `sums`, by number of the head and part."""
        code, builder, size = self._code, self._code.builder, self._shape.page_size
        before = code.times(page, size)
        start = code.most(builder.sub(self._least, before), 0)
        stop = code.least(builder.sub(self._count, before), size)
        if self._split is None:
            self._add_page(page, start, stop, sums)
            return
        with builder.if_else(builder.icmp_signed("<", page, self._split)) as (lies, scattered):
            with lies:
                self._add_page(page, start, stop, sums)
            with scattered, code.loop(start, stop) as at:
                self._add(*self._token(code.add(before, at)), self._kept(page, at), sums)

    def write(self, sums: dict[Cell, Variable], factors: Variable) -> None:
        """Writes sums of the values, times the factor of each head."""
        code, shape = self._code, self._shape
        for (number, part), total in sums.items():
            factor = code.splat(code.lane(factors.get(), number))
            place = code.add(code.number(self._of.heads[number] * shape.kv_heads * shape.value_dim), part)
            code.store(code.builder.fmul(total.get(), factor), code.at(self._out, place))

    def _page(self, page: Value) -> Value:
        """The address of this layer of a page of the sequence."""
        return self._of.cache.page(self._code.integer(self._pages, page, I32), self._code.arguments["layer"])

    def _prefetch(self, page: Value) -> None:
        """Prefetches the page after this one, unless another query of the group did.

        Pages are scattered, so the hardware does not. The first head does it for all.
        """
        code, builder, cache = self._code, self._code.builder, self._shape.cache
        if self._shape.page_size * cache.token_bytes > _PREFETCH_BYTES:
            return
        following = self._page(code.least(code.add(page, 1), code.add(self.last, -1)))
        number = builder.ptrtoint(following, I64)
        is_first = builder.icmp_signed("==", self._of.head, code.number(0))
        is_new = builder.icmp_signed("!=", number, self._of.fetched.get())
        if self._ahead is not None:
            is_new = builder.and_(is_new, builder.not_(self._ahead.is_fetched))
        with builder.if_then(builder.and_(is_first, is_new)):
            self._of.fetched.set(number)
            with code.loop(0, self._shape.page_size * cache.token_bytes, LINE_BYTES) as line:
                code.prefetch(code.at(following, line, I8))

    def _prefetch_ahead(self, page: Value, which: int, token: Value, tokens: int) -> None:
        """Prefetches what so many tokens of a pass over keys or values have to, of the next query's page in this place.

        All passes of all heads together prefetch all of it.
        """
        code, cache, ahead = self._code, self._shape.cache, self._ahead
        if ahead is None:
            return
        with code.builder.if_then(ahead.goes):
            address = self._of.cache.page(code.integer(ahead.pages, page, I32), code.arguments["layer"])
            size = -(-cache.token_bytes // (2 * self._shape.kv_heads))
            part = code.add(code.times(self._of.head, 2), which)
            begin = code.add(code.times(part, size * self._shape.page_size), code.times(token, size))
            for line in range(0, size * tokens, LINE_BYTES):
                code.prefetch(code.at(address, code.add(begin, line), I8))

    def _token(self, position: Value) -> tuple[Value, Value]:
        """The address of the page that holds the token of a position, and its place there; for any position.

        Those that are not visible are read where the last one lies.
        """
        code, builder = self._code, self._code.builder
        position = code.least(position, code.add(self._count, -1))
        place = code.integer(self._places, code.most(builder.sub(position, self._path), 0), I32)
        place = builder.select(builder.icmp_signed("<", position, self._path), position, place)
        size = code.number(self._shape.page_size)
        return self._page(builder.sdiv(place, size)), builder.srem(place, size)

    def _kept(self, page: Value, token: int | Value = 0) -> Value:
        """The address of the scores of a token of a page, one for each head of the block."""
        code = self._code
        place = code.times(code.builder.sub(page, self.first), self._shape.page_size)
        return code.at(self._scratch, code.times(code.add(place, token), self._of.block))

    def _score(self, page: Value, at: Value, tokens: list[tuple[Value, Value]], peak: Variable) -> None:
        """The scores of a tile, whose tokens are in these places of the pages at these addresses."""
        code, builder, of = self._code, self._code.builder, self._of
        keys = [of.cache.head(*place, KEY, of.head) for place in tokens]
        scales = [of.cache.scale(*place, KEY, of.head) for place in tokens]
        scores = builder.fmul(code.sums(self._products(keys)), self._factors(scales))
        scores = of.group.scores.capped(code, scores)
        lanes = ir.Constant(code.integers, [lane // of.block for lane in range(code.width)])
        first = builder.trunc(code.add(code.times(page, self._shape.page_size), at), I32)
        positions = builder.add(code.splat(first), lanes)
        if of.group.scores.alibi is not None:
            last = code.splat(builder.trunc(code.add(self._count, -1), I32))
            scores = of.group.scores.biased(code, scores, self._by_head("slopes"), positions, last)
        count, least = (code.splat(builder.trunc(bound, I32)) for bound in (self._count, self._least))
        visible = builder.icmp_signed("<", positions, count)
        visible = builder.and_(visible, builder.icmp_signed(">=", positions, least))
        scores = builder.select(visible, scores, code.constant(float("-inf")))
        code.store(scores, self._kept(page, at))
        peak.set(code.maximum(peak.get(), scores))

    def _products(self, keys: list[Value]) -> list[Value]:
        """The products of query and key for each token of a tile and head of the block, each a vector to be summed."""
        code, shape, of = self._code, self._shape, self._of
        if shape.latent:
            return self._long_products(keys)
        products: list[Value] = []
        for key_head in keys:
            sums: list[Value | None] = [None] * of.block
            for part in range(0, shape.dim, code.width):
                key = of.cache.load(key_head, KEY, part)
                for index, head in enumerate(of.heads):
                    query, before = (
                        code.load(code.at(self._queries, head * shape.kv_heads * shape.dim + part)),
                        sums[index],
                    )
                    sums[index] = code.builder.fmul(query, key) if before is None else code.fma(query, key, before)
            products += [code.constant(0.0) if product is None else product for product in sums]
        return products

    def _long_products(self, keys: list[Value]) -> list[Value]:
        """The same, by a loop over the parts of a key that is too wide to be written out."""
        code, shape, of = self._code, self._shape, self._of
        sums = {
            (place, index): code.variable(code.vector, code.constant(0.0))
            for place in range(len(keys))
            for index in range(of.block)
        }
        with code.loop(0, shape.dim, code.width) as part:
            for place, key_head in enumerate(keys):
                key = of.cache.load(key_head, KEY, part)
                for index, head in enumerate(of.heads):
                    query = code.load(code.at(self._queries, code.add(part, head * shape.kv_heads * shape.dim)))
                    total = sums[place, index]
                    total.set(code.fma(query, key, total.get()))
        return [total.get() for total in sums.values()]

    def _factors(self, scales: list[Value | None]) -> Value:
        """The factors of the sums of a tile: the scaling, and the scales of the keys where they are quantized."""
        code, scaling = self._code, self._of.scaling
        return scaling if scales[0] is None else code.builder.fmul(spread(code, scales), scaling)

    def _sinks(self) -> Value:
        """The sink of each lane's query head."""
        return self._by_head("sinks")

    def _by_head(self, name: str) -> Value:
        """What an argument float32 [fold, kv_heads] has for each lane's query head."""
        code, of = self._code, self._of
        vector = ir.Constant(code.vector, [0.0] * code.width)
        for index, fold in enumerate(of.heads):
            place = code.at(code.arguments[name], code.add(of.head, fold * self._shape.kv_heads))
            number = code.builder.load(place, typ=F32, align=4)
            for lane in range(index, code.width, of.block):
                vector = code.builder.insert_element(vector, number, ir.Constant(I32, lane))
        return vector

    def _add_page(self, page: Value, start: Value, stop: Value, sums: dict[Cell, Variable]) -> None:
        address = self._page(page)
        with self._code.loop(start, stop) as token:
            self._prefetch_ahead(page, VALUE, token, 1)
            self._add(address, token, self._kept(page, token), sums)

    def _add(self, address: Value, token: Value, kept: Value, sums: dict[Cell, Variable]) -> None:
        """Adds a token's value times its weights at `kept` to `sums`, by number of the head and part."""
        code, of = self._code, self._of
        value_head = of.cache.head(address, token, VALUE, of.head)
        values = {part: of.cache.load(value_head, VALUE, part) for part in dict.fromkeys(part for _, part in sums)}
        factor = of.cache.scale(address, token, VALUE, of.head)
        for number in range(len(of.heads)):
            weight = code.broadcast(code.at(kept, number))
            if factor is not None:
                weight = code.builder.fmul(weight, code.splat(factor))
            for part, value in values.items():
                total = sums[number, part]
                total.set(code.fma(weight, value, total.get()))
