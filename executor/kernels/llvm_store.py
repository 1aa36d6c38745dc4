"""What comes before attention on a CPU, as LLVM code: rotary turns, and keys and values into their pages."""

from __future__ import annotations

from llvmlite import ir

from qpdsl.executor.kernels.llvm_builder import I64, Code, Value
from qpdsl.executor.kernels.llvm_cache import KEY, VALUE, Cache, HeadShape


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
