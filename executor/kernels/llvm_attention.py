"""Paged attention on a CPU as LLVM code: rotary turns, storing keys and values, and attention over pages in place.

Nothing is gathered and nothing padded: a query reads the pages of its sequence where they lie. What is computed for a
query hangs on its own position alone, so its bits are the same in any batch, however a prompt is cut into chunks.

The scores of one vector are those of `width / heads` tokens for a block of heads that share a key; sums over the head's
width are made by transposing (`Code.sums`), the softmax runs over such vectors, and the values are added up token by
token. Softmax in two passes, over scores that are kept: Dao et al., FlashAttention (2022) discusses the online one,
which saves memory traffic that a core's own cache does not feel.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from qpdsl.executor.kernels.llvm_builder import I32, I64, Code, Value
from qpdsl.executor.kernels.llvm_cache import I8, KEY, VALUE, Cache, CacheShape, spread
from qpdsl.executor.kernels.rows import Kind

_LINE_BYTES = 64
# A larger page would push out of a core's own cache what is being read.
_ASKED_BYTES = 1 << 16
# Vector registers that hold sums while values are added up.
_SUMS = 16


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The heads of a model: `fold` query heads for each of `kv_heads`, `dim` wide, KV in pages of `page_size` tokens.

    A row of the joined product is [fold, kv_heads, dim] of queries, then the keys and the values [kv_heads, dim] each.
    `kind`: what the cache holds.
    """

    fold: int
    kv_heads: int
    dim: int
    page_size: int
    kind: Kind = "plain"

    @property
    def cache(self) -> CacheShape:
        return CacheShape(self.kv_heads, self.dim, self.page_size, self.kind)

    @property
    def queries(self) -> int:
        return self.fold * self.kv_heads * self.dim

    @property
    def joined(self) -> int:
        return (self.fold + 2) * self.kv_heads * self.dim

    def block(self, width: int) -> int:
        """Query heads that are scored together: a power of two, `fold` and what pads it, at most a vector's width."""
        return min(width, 1 << (self.fold - 1).bit_length())


def emit_store(module: ir.Module, name: str, shape: HeadShape, width: int, epsilon: float | None) -> None:
    """Turns queries and keys by their positions, in place, and stores keys and values in the pages of a layer.

    Arguments: joined float32 [T, joined]; turns float32 [P, dim], cosine and sine of each pair in turn; positions and
    slots int64 [T]; the cache's rows; weights float32 [(fold + 1) * kv_heads, dim] of the norms over single heads,
    which there are where `epsilon` is not None; T; the layer.
    """
    code = Code(module, name, ("joined", "turns", "positions", "slots", "rows", "weights", "@count", "@layer"), width)
    builder, given = code.builder, code.given
    cache = Cache(code, shape.cache, given["rows"])
    parts = range(0, shape.dim, width)
    heads, keys = shape.fold * shape.kv_heads, shape.kv_heads
    with code.loop(0, given["count"]) as row:
        position = code.integer(given["positions"], row, I64)
        joined = code.at(given["joined"], code.times(row, shape.joined))
        slot = code.integer(given["slots"], row, I64)
        size = code.number(shape.page_size)
        page = cache.page(builder.sdiv(slot, size), given["layer"])
        token = builder.srem(slot, size)
        turn = _Turn(code, shape.dim, epsilon, code.at(given["turns"], code.times(position, shape.dim)))
        with code.loop(0, heads) as head:
            target = code.at(joined, code.times(head, shape.dim))
            for part, value in zip(parts, turn.emit(joined, head), strict=True):
                code.store(value, code.at(target, part))
        with code.loop(0, keys) as head:
            cache.store(page, token, KEY, head, turn.emit(joined, code.add(head, heads)))
            source = code.at(joined, code.times(code.add(head, heads + keys), shape.dim))
            cache.store(page, token, VALUE, head, [code.load(code.at(source, part)) for part in parts])
    code.end()


class _Turn:
    """The code that turns the heads of one token: pairs (a, b) to (a·cos - b·sin, b·cos + a·sin)."""

    def __init__(self, code: Code, dim: int, epsilon: float | None, turn: Value) -> None:
        """`turn`: the address of the cosine and the sine of each pair."""
        self._code, self._dim, self._epsilon = code, dim, epsilon
        self._parts = range(0, dim, code.width)
        lanes = range(code.width)
        signs = code.constant([-1.0 if lane % 2 == 0 else 1.0 for lane in lanes])
        found = [code.load(code.at(turn, part)) for part in self._parts]
        self._cosines = [code.shuffle(each, each, [lane & ~1 for lane in lanes]) for each in found]
        sines = [code.shuffle(each, each, [lane | 1 for lane in lanes]) for each in found]
        self._sines = [code.builder.fmul(sine, signs) for sine in sines]
        self._swapped = [lane ^ 1 for lane in lanes]

    def emit(self, joined: Value, head: Value) -> list[Value]:
        """The vectors of a head of `joined`, turned, after the norm over the head where there is one."""
        code, builder = self._code, self._code.builder
        offset = code.times(head, self._dim)
        values = [code.load(code.at(joined, code.add(offset, part))) for part in self._parts]
        if self._epsilon is not None:
            scale = _norm_scale(code, values, self._dim, self._epsilon)
            weights = [code.load(code.at(code.given["weights"], code.add(offset, part))) for part in self._parts]
            values = [
                builder.fmul(builder.fmul(value, scale), weight) for value, weight in zip(values, weights, strict=True)
            ]
        return [
            code.fma(code.shuffle(value, value, self._swapped), sine, builder.fmul(value, cosine))
            for value, cosine, sine in zip(values, self._cosines, self._sines, strict=True)
        ]


def _norm_scale(code: Code, values: list[Value], count: int, epsilon: float) -> Value:
    """One over the root mean square of `count` values, in every lane."""
    builder = code.builder
    squares = builder.fmul(values[0], values[0])
    for value in values[1:]:
        squares = code.fma(value, value, squares)
    mean = builder.fmul(code.total(squares), code.constant(1.0 / count))
    return builder.fdiv(code.constant(1.0), code.square_root(builder.fadd(mean, code.constant(epsilon))))


def emit_attend(module: ir.Module, name: str, shape: HeadShape, width: int, scaling: float, window: int | None) -> None:
    """Causal attention of turned queries over the pages of a layer, within the last `window` positions where given.

    Arguments: joined float32 [T, joined], of which the queries are read; the cache's rows; pages int32 [B, table];
    context int32 [B], tokens of each sequence with its queries; start int32 [B + 1], where its queries begin; out
    float32 [T, fold, kv_heads, dim]; scratch float32 [table * page_size * block]; the width of a page table; the layer;
    B; the first query to compute and the one to stop before.
    """
    addresses = ("joined", "rows", "pages", "context", "start", "out", "scratch")
    numbers = ("@table", "@layer", "@sequences", "@from", "@to")
    code = Code(module, name, (*addresses, *numbers), width)
    given = code.given
    with code.loop(0, given["sequences"]) as sequence:
        first = code.integer(given["start"], sequence, I32)
        last = code.integer(given["start"], code.add(sequence, 1), I32)
        context = code.integer(given["context"], sequence, I32)
        pages = code.at(given["pages"], code.times(sequence, given["table"]), I32)
        begin, end = code.most(first, given["from"]), code.least(last, given["to"])
        with code.loop(0, shape.kv_heads) as head, code.loop(begin, end) as row:
            count = code.builder.sub(context, code.add(code.builder.sub(last, row), -1))
            for fold in range(0, shape.fold, shape.block(width)):
                heads = range(fold, min(fold + shape.block(width), shape.fold))
                _Query(code, shape, heads, scaling, window, head, row, count, pages).emit()
    code.end()


class _Query:
    """The code for one query's block of heads that share KV head `head`; it sees `count` tokens."""

    def __init__(
        self,
        code: Code,
        shape: HeadShape,
        heads: range,
        scaling: float,
        window: int | None,
        head: Value,
        row: Value,
        count: Value,
        pages: Value,
    ) -> None:
        self._code, self._shape, self._heads = code, shape, heads
        self._scaling, self._window = scaling, window
        self._count, self._pages = count, pages
        given, offset = code.given, code.times(head, shape.dim)
        joined, out = code.times(row, shape.joined), code.times(row, shape.queries)
        self._queries = code.at(given["joined"], code.add(joined, offset))
        self._out = code.at(given["out"], code.add(out, offset))
        self._scratch = given["scratch"]
        self._block = shape.block(code.width)
        self._tile = code.width // self._block
        self._head = head
        self._cache = Cache(code, shape.cache, given["rows"])
        zero = code.number(0)
        self._least = zero if window is None else code.most(code.add(count, -window), 0)
        self._first = code.builder.sdiv(self._least, code.number(shape.page_size))
        self._last = code.builder.sdiv(code.add(count, shape.page_size - 1), code.number(shape.page_size))

    def emit(self) -> None:
        code = self._code
        highest = code.folded(self._scores(), self._block, code.maximum)
        sums = code.folded(self._exponentials(highest), self._block, code.builder.fadd)
        self._values(code.builder.fdiv(code.constant(1.0), sums))

    def _page(self, page: Value) -> Value:
        """The address of this layer of a page of the sequence."""
        return self._cache.page(self._code.integer(self._pages, page, I32), self._code.given["layer"])

    def _kept(self, page: Value, token: int | Value = 0) -> Value:
        """Where the scores of a token of a page are kept, one for each head of the block."""
        code = self._code
        place = code.times(code.builder.sub(page, self._first), self._shape.page_size)
        return code.at(self._scratch, code.times(code.add(place, token), self._block))

    def _query(self, head: int, part: int) -> Value:
        code = self._code
        return code.load(code.at(self._queries, head * self._shape.kv_heads * self._shape.dim + part))

    def _scores(self) -> Value:
        """Keeps the scores of all pages, -inf where a token is not to be seen. Their maximum, lane by lane."""
        code, shape, builder = self._code, self._shape, self._code.builder
        lowest = code.constant(float("-inf"))
        highest = code.variable(code.vector, lowest)
        token = ir.Constant(code.integers, [lane // self._block for lane in range(code.width)])
        seen = code.splat(builder.trunc(self._count, I32))
        least = code.splat(builder.trunc(self._least, I32))
        first_head = builder.icmp_signed("==", self._head, code.number(0))
        with code.loop(self._first, self._last) as page:
            here = self._page(page)
            ahead = self._page(code.least(code.add(page, 1), code.add(self._last, -1)))
            with code.loop(0, shape.page_size, self._tile) as at:
                # Pages lie scattered, where the hardware does not look ahead: the next one is asked for meanwhile.
                if shape.page_size * shape.cache.token_bytes <= _ASKED_BYTES:
                    with builder.if_then(first_head):
                        next_tile = self._cache.head(ahead, at, KEY, code.number(0))
                        for line in range(0, self._tile * shape.cache.token_bytes, _LINE_BYTES):
                            code.prefetch(code.at(next_tile, line, I8))
                scores = builder.fmul(code.sums(self._products(here, at)), self._factors(here, at))
                place = code.add(code.times(page, shape.page_size), at)
                places = builder.add(code.splat(builder.trunc(place, I32)), token)
                visible = builder.icmp_signed("<", places, seen)
                if self._window is not None:
                    visible = builder.and_(visible, builder.icmp_signed(">=", places, least))
                scores = builder.select(visible, scores, lowest)
                code.store(scores, self._kept(page, at))
                highest.set(code.maximum(highest.get(), scores))
        return highest.get()

    def _products(self, page: Value, at: Value) -> list[Value]:
        """For each token of a tile and each head of the block the products of query and key, a vector to be summed."""
        code, shape = self._code, self._shape
        tile = self._cache.head(page, at, KEY, self._head)
        products: list[Value] = []
        for token in range(self._tile):
            key_head = code.at(tile, token * shape.cache.token_bytes, I8)
            found: list[Value | None] = [None] * self._block
            for part in range(0, shape.dim, code.width):
                key = self._cache.load(key_head, part)
                for index, head in enumerate(self._heads):
                    query, before = self._query(head, part), found[index]
                    found[index] = code.builder.fmul(query, key) if before is None else code.fma(query, key, before)
            products += [code.constant(0.0) if each is None else each for each in found]
        return products

    def _factors(self, page: Value, at: Value) -> Value:
        """What the sums of a tile are multiplied by."""
        code = self._code
        scaling = code.constant(self._scaling)
        scales = [self._cache.scale(page, code.add(at, token), KEY, self._head) for token in range(self._tile)]
        return scaling if scales[0] is None else code.builder.fmul(spread(code, scales), scaling)

    def _exponentials(self, highest: Value) -> Value:
        """Turns the kept scores to weights e^(score - highest). Their sums, lane by lane."""
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
        """Adds up the values by their weights, times each head's `scale`."""
        code, shape = self._code, self._shape
        at_once = max(1, _SUMS // len(self._heads)) * code.width
        for begin in range(0, shape.dim, at_once):
            parts = range(begin, min(begin + at_once, shape.dim), code.width)
            sums = {(h, p): code.variable(code.vector, code.constant(0.0)) for h in self._heads for p in parts}
            with code.loop(self._first, self._last) as page:
                here = self._page(page)
                before = code.times(page, shape.page_size)
                start = code.most(code.builder.sub(self._least, before), 0)
                stop = code.least(code.builder.sub(self._count, before), shape.page_size)
                with code.loop(start, stop) as token:
                    place = self._cache.head(here, token, VALUE, self._head)
                    found = {part: self._cache.load(place, part) for part in parts}
                    factor = self._cache.scale(here, token, VALUE, self._head)
                    kept = self._kept(page, token)
                    for index, head in enumerate(self._heads):
                        weight = code.broadcast(code.at(kept, index))
                        if factor is not None:
                            weight = code.builder.fmul(weight, code.splat(factor))
                        for part in parts:
                            total = sums[head, part]
                            total.set(code.fma(weight, found[part], total.get()))
            for index, head in enumerate(self._heads):
                factor = code.splat(code.lane(scale, index))
                for part in parts:
                    target = code.at(self._out, head * shape.kv_heads * shape.dim + part)
                    code.store(code.builder.fmul(sums[head, part].get(), factor), target)
