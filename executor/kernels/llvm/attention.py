"""Paged attention on a CPU as LLVM code.

Nothing is gathered or padded: a query reads the pages of its sequence where they lie. Its result depends on its own
position and context only, so the bits are the same in any batch and however a prompt is cut into chunks.

A vector holds the scores of `width / heads` tokens for a block of query heads that share a KV head. Sums over the
dimensions of a head are made by transposing (`KernelCode.sums`), the softmax runs over the vectors of scores, and the
values are added up token by token. The softmax takes two passes over stored scores. The online softmax of
FlashAttention (Dao et al., 2022) would save memory traffic, which does not matter while scores stay in a core's cache.

The last tokens of a sequence that is a path in a tree (`Paths`) are read one by one from where they lie, each into the
lane of its position: so the path has the bits of the same tokens in their places.
"""

from __future__ import annotations

from llvmlite import ir

from qpdsl.executor.kernels.llvm.cache import KEY, VALUE, Cache, HeadShape, spread
from qpdsl.executor.kernels.llvm.jit.builder import F32, I8, I32, KernelCode, Value, Variable

_LINE_BYTES = 64
# A larger page would push the page that is being read out of a core's cache.
_PREFETCH_BYTES = 1 << 16
# Vector registers that hold sums while values are added up.
_SUM_REGISTERS = 16


# What to give as the window of a layer without one.
NO_WINDOW = 1 << 40


def emit_attend(
    module: ir.Module,
    name: str,
    shape: HeadShape,
    width: int,
    sinks: bool = False,
    softcap: float | None = None,
    trees: bool = False,
) -> None:
    """Causal attention of rotated queries over the pages of a layer, within the last `window` positions.

    `softcap`: c maps scores s to c·tanh(s/c) (Gemma 2); None for none.

    A unit is one query and one KV head, with all query heads that share it. The units of a sequence are ordered by
    head. Arguments of the function, in order:
    queries    float32 [T, row], the queries [fold, kv_heads, dim] first in each row
    row        numbers from a row of queries to the next
    rows       the rows of the cache
    pages      int32 [B, table], the page table
    context    int32 [B], the tokens of each sequence including its queries
    start      int32 [B + 1], where its queries begin
    out        float32 [T, fold, kv_heads, dim]
    scratch    float32 [table * page_size * block]
    table      the pages of a sequence in the page table
    layer
    sequences  B
    from, to   the first unit to compute, and the unit to stop before
    scaling    float32 [1], the factor of the scores
    window     in tokens
    sinks      float32 [fold, kv_heads], a score for each head that takes weight and gives no value (gpt-oss); not read
               without `sinks`
    With `trees`, three more, as in `Paths`:
    path_start int32 [B]
    places     int32 [B, path]
    path       places of a path
    """
    addresses = ("queries", "@row", "rows", "pages", "context", "start", "out", "scratch")
    numbers = ("@table", "@layer", "@sequences", "@from", "@to", "scaling", "@window", "sinks")
    paths = ("path_start", "places", "@path") if trees else ()
    code = KernelCode(module, name, (*addresses, *numbers, *paths), width)
    arguments = code.arguments
    scaling = code.broadcast(arguments["scaling"])
    with code.loop(0, arguments["sequences"]) as sequence:
        first = code.integer(arguments["start"], sequence, I32)
        last = code.integer(arguments["start"], code.add(sequence, 1), I32)
        context = code.integer(arguments["context"], sequence, I32)
        pages = code.at(arguments["pages"], code.times(sequence, arguments["table"]), I32)
        path: tuple[Value, Value] | None = None
        if trees:
            path_start = code.integer(arguments["path_start"], sequence, I32)
            path = path_start, code.at(arguments["places"], code.times(sequence, arguments["path"]), I32)
        length, before = code.builder.sub(last, first), code.times(first, shape.kv_heads)
        begin = code.most(code.builder.sub(arguments["from"], before), 0)
        end = code.least(code.builder.sub(arguments["to"], before), code.times(length, shape.kv_heads))
        with code.loop(begin, end) as unit:
            head = code.builder.sdiv(unit, length)
            row = code.add(first, code.builder.srem(unit, length))
            count = code.builder.sub(context, code.add(code.builder.sub(last, row), -1))
            for fold in range(0, shape.fold, shape.block(width)):
                heads = range(fold, min(fold + shape.block(width), shape.fold))
                _Query(code, shape, heads, scaling, sinks, softcap, head, row, count, pages, path).emit()
    code.end()


class _Query:
    """The code for one query and a block of its heads that share KV head `head`; it sees `count` tokens.

    `path`: the first position that may lie in another place, and the places from there on; None where none does.
    """

    def __init__(
        self,
        code: KernelCode,
        shape: HeadShape,
        heads: range,
        scaling: Value,
        sinks: bool,
        softcap: float | None,
        head: Value,
        row: Value,
        count: Value,
        pages: Value,
        path: tuple[Value, Value] | None,
    ) -> None:
        self._code, self._shape, self._heads = code, shape, heads
        self._scaling, self._has_sinks, self._softcap = scaling, sinks, softcap
        self._count, self._pages = count, pages
        arguments, offset = code.arguments, code.times(head, shape.dim)
        source, out = code.times(row, arguments["row"]), code.times(row, shape.queries)
        self._queries = code.at(arguments["queries"], code.add(source, offset))
        self._out = code.at(arguments["out"], code.add(out, offset))
        self._scratch = arguments["scratch"]
        self._block = shape.block(code.width)
        self._tile = code.width // self._block
        self._head = head
        self._cache = Cache(code, shape.cache, arguments["rows"])
        self._least = code.most(code.builder.sub(count, arguments["window"]), 0)
        self._first = code.builder.sdiv(self._least, code.number(shape.page_size))
        self._last = code.builder.sdiv(code.add(count, shape.page_size - 1), code.number(shape.page_size))
        # Pages before this one are read as they lie, the positions of the others one by one.
        self._path, self._split = path, self._last
        if path is not None:
            begin = code.builder.sdiv(path[0], code.number(shape.page_size))
            self._split = code.least(code.most(begin, self._first), self._last)

    def emit(self) -> None:
        code = self._code
        highest = code.folded(self._scores(), self._block, code.maximum)
        sinks = self._sinks() if self._has_sinks else None
        if sinks is not None:
            highest = code.maximum(highest, sinks)
        sums = code.folded(self._exponentials(highest), self._block, code.builder.fadd)
        if sinks is not None:
            sums = code.builder.fadd(sums, code.exp(code.builder.fsub(sinks, highest)))
        self._values(code.builder.fdiv(code.constant(1.0), sums))

    def _sinks(self) -> Value:
        """The sink of each lane's query head."""
        code, shape = self._code, self._shape
        sinks = ir.Constant(code.vector, [0.0] * code.width)
        for index, fold in enumerate(self._heads):
            place = code.at(code.arguments["sinks"], code.add(self._head, fold * shape.kv_heads))
            sink = code.builder.load(place, typ=F32, align=4)
            for lane in range(index, code.width, self._block):
                sinks = code.builder.insert_element(sinks, sink, ir.Constant(I32, lane))
        return sinks

    def _page(self, page: Value) -> Value:
        """The address of this layer of a page of the sequence."""
        return self._cache.page(self._code.integer(self._pages, page, I32), self._code.arguments["layer"])

    def _token(self, position: Value) -> tuple[Value, Value]:
        """The address of the page that holds the token of a position, and its place there; for any position.

        Those that are not visible are read where the last one lies.
        """
        assert self._path is not None
        code, builder, (start, places) = self._code, self._code.builder, self._path
        position = code.least(position, code.add(self._count, -1))
        place = code.integer(places, code.most(builder.sub(position, start), 0), I32)
        place = builder.select(builder.icmp_signed("<", position, start), position, place)
        size = code.number(self._shape.page_size)
        return self._page(builder.sdiv(place, size)), builder.srem(place, size)

    def _kept(self, page: Value, token: int | Value = 0) -> Value:
        """The address of the scores of a token of a page, one for each head of the block."""
        code = self._code
        place = code.times(code.builder.sub(page, self._first), self._shape.page_size)
        return code.at(self._scratch, code.times(code.add(place, token), self._block))

    def _query(self, head: int, part: int) -> Value:
        code = self._code
        return code.load(code.at(self._queries, head * self._shape.kv_heads * self._shape.dim + part))

    def _scores(self) -> Value:
        """Stores the scores of all pages, -inf where a token is not visible. Returns their maximum, lane by lane."""
        code, shape, builder = self._code, self._shape, self._code.builder
        lowest = code.constant(float("-inf"))
        highest = code.variable(code.vector, lowest)
        token = ir.Constant(code.integers, [lane // self._block for lane in range(code.width)])
        count = code.splat(builder.trunc(self._count, I32))
        least = code.splat(builder.trunc(self._least, I32))
        first_head = builder.icmp_signed("==", self._head, code.number(0))

        def keep(page: Value, at: Value, keys: list[Value], scales: list[Value | None]) -> None:
            scores = builder.fmul(code.sums(self._products(keys)), self._factors(scales))
            if self._softcap is not None:
                scores = self._capped(scores, self._softcap)
            place = code.add(code.times(page, shape.page_size), at)
            places = builder.add(code.splat(builder.trunc(place, I32)), token)
            visible = builder.icmp_signed("<", places, count)
            visible = builder.and_(visible, builder.icmp_signed(">=", places, least))
            scores = builder.select(visible, scores, lowest)
            code.store(scores, self._kept(page, at))
            highest.set(code.maximum(highest.get(), scores))

        with code.loop(self._first, self._split) as page:
            address = self._page(page)
            following = self._page(code.least(code.add(page, 1), code.add(self._last, -1)))
            with code.loop(0, shape.page_size, self._tile) as at:
                # Pages are scattered, so the hardware does not prefetch the next one: this does.
                if shape.page_size * shape.cache.token_bytes <= _PREFETCH_BYTES:
                    with builder.if_then(first_head):
                        next_tile = self._cache.head(following, at, KEY, code.number(0))
                        for line in range(0, self._tile * shape.cache.token_bytes, _LINE_BYTES):
                            code.prefetch(code.at(next_tile, line, I8))
                tile = self._cache.head(address, at, KEY, self._head)
                keys = [code.at(tile, number * shape.cache.token_bytes, I8) for number in range(self._tile)]
                keep(page, at, keys, [self._scale(address, code.add(at, n), KEY) for n in range(self._tile)])
        if self._path is not None:
            with code.loop(self._split, self._last) as page, code.loop(0, shape.page_size, self._tile) as at:
                position = code.add(code.times(page, shape.page_size), at)
                tokens = [self._token(code.add(position, number)) for number in range(self._tile)]
                keys = [self._cache.head(*place, KEY, self._head) for place in tokens]
                keep(page, at, keys, [self._scale(*place, KEY) for place in tokens])
        return highest.get()

    def _scale(self, page: Value, token: Value, which: int) -> Value | None:
        return self._cache.scale(page, token, which, self._head)

    def _capped(self, scores: Value, cap: float) -> Value:
        """c·tanh(s/c), of tanh(x) = 1 - 2 / (e^2x + 1)."""
        code, builder = self._code, self._code.builder
        power = code.exp(builder.fmul(scores, code.constant(2.0 / cap)))
        rest = builder.fdiv(code.constant(2.0), builder.fadd(power, code.constant(1.0)))
        return builder.fmul(builder.fsub(code.constant(1.0), rest), code.constant(cap))

    def _products(self, keys: list[Value]) -> list[Value]:
        """The products of query and key for each token of a tile and head of the block, each a vector to be summed."""
        code, shape = self._code, self._shape
        products: list[Value] = []
        for key_head in keys:
            sums: list[Value | None] = [None] * self._block
            for part in range(0, shape.dim, code.width):
                key = self._cache.load(key_head, part)
                for index, head in enumerate(self._heads):
                    query, before = self._query(head, part), sums[index]
                    sums[index] = code.builder.fmul(query, key) if before is None else code.fma(query, key, before)
            products += [code.constant(0.0) if product is None else product for product in sums]
        return products

    def _factors(self, scales: list[Value | None]) -> Value:
        """The factors of the sums of a tile: the scaling, and the scales of the keys where they are quantized."""
        code = self._code
        return self._scaling if scales[0] is None else code.builder.fmul(spread(code, scales), self._scaling)

    def _exponentials(self, highest: Value) -> Value:
        """Turns the stored scores into weights e^(score - highest). Returns their sums, lane by lane."""
        code, builder = self._code, self._code.builder
        sums = code.variable(code.vector, code.constant(0.0))
        pages = builder.sub(self._last, self._first)
        with code.loop(0, code.times(pages, self._shape.page_size * self._block), code.width) as at:
            place = code.at(self._scratch, at)
            weights = code.exp(builder.fsub(code.load(place), highest))
            code.store(weights, place)
            sums.set(builder.fadd(sums.get(), weights))
        return sums.get()

    def _values(self, scale: Value) -> None:
        """Writes the sums of the values by their weights, times the `scale` of each head."""
        code, shape = self._code, self._shape
        at_once = max(1, _SUM_REGISTERS // len(self._heads)) * code.width
        for begin in range(0, shape.dim, at_once):
            parts = range(begin, min(begin + at_once, shape.dim), code.width)
            sums = {(h, p): code.variable(code.vector, code.constant(0.0)) for h in self._heads for p in parts}
            with code.loop(self._first, self._split) as page:
                address = self._page(page)
                before = code.times(page, shape.page_size)
                start = code.most(code.builder.sub(self._least, before), 0)
                stop = code.least(code.builder.sub(self._count, before), shape.page_size)
                with code.loop(start, stop) as token:
                    self._add(address, token, self._kept(page, token), sums)
            if self._path is not None:
                before = code.times(self._split, shape.page_size)
                with code.loop(code.most(before, self._least), self._count) as position:
                    kept = self._kept(self._split, code.builder.sub(position, before))
                    self._add(*self._token(position), kept, sums)
            for index, head in enumerate(self._heads):
                factor = code.splat(code.lane(scale, index))
                for part in parts:
                    target = code.at(self._out, head * shape.kv_heads * shape.dim + part)
                    code.store(code.builder.fmul(sums[head, part].get(), factor), target)

    def _add(self, address: Value, token: Value, kept: Value, sums: dict[tuple[int, int], Variable]) -> None:
        """Adds a token's value times its weights at `kept` to `sums`, by head and part."""
        code = self._code
        parts = sorted({part for _, part in sums})
        value_head = self._cache.head(address, token, VALUE, self._head)
        values = {part: self._cache.load(value_head, part) for part in parts}
        factor = self._scale(address, token, VALUE)
        for index, head in enumerate(self._heads):
            weight = code.broadcast(code.at(kept, index))
            if factor is not None:
                weight = code.builder.fmul(weight, code.splat(factor))
            for part in parts:
                total = sums[head, part]
                total.set(code.fma(weight, values[part], total.get()))
