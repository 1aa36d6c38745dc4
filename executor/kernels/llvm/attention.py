"""Paged attention on a CPU as LLVM code.

Nothing is gathered or padded: a query reads the pages of its sequence where they lie. Its result depends on its own
position and context only, so the bits are the same in any batch and however a prompt is cut into chunks.

Up to `TOGETHER` queries go over their pages side by side: those of a chunk, or of sequences with one each. Pages that
they share, such as the prefix of siblings, then come from a core's nearest cache.

`query_group.py` has the code of such a group; here is what goes into one.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from qpdsl.executor.kernels.llvm.cache import HeadShape
from qpdsl.executor.kernels.llvm.jit.builder import I32, I64, KernelCode, Value
from qpdsl.executor.kernels.llvm.query_group import TOGETHER, HeadBlock, QueryGroup, Scores

# What to give as the window of a layer without one.
NO_WINDOW = 1 << 40


def scratch_size(shape: HeadShape, width: int, table: int) -> int:
    """The numbers of a scratch for page tables of so many pages."""
    return TOGETHER * table * shape.page_size * shape.block(width)


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
    scratch    float32 [`scratch_size`]
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
    _Units(code, shape, Scores(sinks, softcap, trees)).emit()
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
        begin, end = code.most(arguments["from"], 0), code.least(arguments["to"], units)
        self._turns(begin, end, singles, lambda number: (number, code.add(number, 1), number))
        with code.loop(singles, arguments["sequences"]) as sequence:
            first = code.integer(arguments["start"], sequence, I32)
            last = code.integer(arguments["start"], code.add(sequence, 1), I32)
            length, before = builder.sub(last, first), code.times(first, self._shape.kv_heads)
            begin = code.most(builder.sub(arguments["from"], before), 0)
            end = code.least(builder.sub(arguments["to"], before), code.times(length, self._shape.kv_heads))
            self._turns(begin, end, length, lambda number: (code.add(first, number), last, sequence))

    def _singles(self) -> Value:
        """How many of the first sequences have one query each."""
        code, builder = self._code, self._code.builder
        count = code.variable(I64, code.number(0))
        head, body, after = (builder.append_basic_block(part) for part in ("head", "body", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        builder.cbranch(builder.icmp_signed("<", count.get(), code.arguments["sequences"]), body, after)
        builder.position_at_end(body)
        following = code.add(count.get(), 1)
        is_single = builder.icmp_signed("==", code.integer(code.arguments["start"], following, I32), following)
        count.set(builder.select(is_single, following, count.get()))
        builder.cbranch(is_single, head, after)
        builder.position_at_end(after)
        return count.get()

    def _sharing(self, most: Value, sequence: Callable[[Value], Value]) -> Value:
        """How many of the next queries are of sequences with the first page of the first one: others gain nothing.

        `sequence` gives that of a query by its number.
        """
        code, builder, arguments = self._code, self._code.builder, self._code.arguments

        def first_page(index: Value) -> Value:
            return code.integer(arguments["pages"], builder.mul(sequence(index), arguments["table"]), I32)

        page, count = first_page(code.number(0)), code.variable(I64, code.number(1))
        head, body, after = (builder.append_basic_block(part) for part in ("head", "body", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        builder.cbranch(builder.icmp_signed("<", count.get(), most), body, after)
        builder.position_at_end(body)
        is_same = builder.icmp_signed("==", first_page(count.get()), page)
        count.set(builder.select(is_same, code.add(count.get(), 1), count.get()))
        builder.cbranch(is_same, head, after)
        builder.position_at_end(after)
        return count.get()

    def _turns(
        self, begin: Value, end: Value, length: Value, at: Callable[[Value], tuple[Value, Value, Value]]
    ) -> None:
        """Units from `begin` to before `end`, of heads with `length` queries each.

        `at` gives, by the number of a query, its row, the row after the last of its sequence, and the sequence.
        """
        code, builder = self._code, self._code.builder
        unit = code.variable(I64, begin)
        head, body, after = (builder.append_basic_block(part) for part in ("head", "body", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        builder.cbranch(builder.icmp_signed("<", unit.get(), end), body, after)
        builder.position_at_end(body)
        kv_head, number = builder.sdiv(unit.get(), length), builder.srem(unit.get(), length)
        rest = code.least(builder.sub(length, number), builder.sub(end, unit.get()))
        together = self._sharing(code.least(rest, TOGETHER), lambda index: at(code.add(number, index))[2])
        with code.loop(0, together) as index:
            self._group.describe(index, *at(code.add(number, index)))
        block = self._shape.block(code.width)
        for fold in range(0, self._shape.fold, block):
            heads = range(fold, min(fold + block, self._shape.fold))
            HeadBlock(self._group, heads, kv_head, together, self._scaling).emit()
        unit.set(code.add(unit.get(), together))
        builder.branch(head)
        builder.position_at_end(after)
