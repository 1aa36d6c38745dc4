"""A whole forward over the layers of a decoder as one compiled function, for several threads.

Every thread calls the function with its number. In each phase it takes its share of the rows, the outputs of a product
or the units of attention, and waits for the others where the next phase reads what they wrote. What a share is depends
on the number of threads, what is computed for a row does not.

The gated delta rule is a part of it (`delta.py`). Other recurrences are computed by the caller: the forward ends with
what a layer's first projection makes, and goes on with what is to be projected back.

The function reads two arrays of 64-bit numbers, most of them addresses: the *frame*, which describes one step, and a
row for each layer. `FRAME` and `LAYER` name their places.

What a decoder layer computes between its matrix products and its attention, as LLVM code.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from llvmlite import ir

from qpdsl.executor.kernels.data.layer_constants import UNGATED, Activation
from qpdsl.executor.kernels.llvm.attention import emit_attend
from qpdsl.executor.kernels.llvm.cache import KEY, VALUE, Cache, HeadShape
from qpdsl.executor.kernels.llvm.compile import Emitter, Library, vector_width
from qpdsl.executor.kernels.llvm.kernel_code import I8, I32, I64, POINTER, KernelCode, Value
from qpdsl.executor.kernels.llvm.matmul_code import near_rows, panels_at_once

# gelu(x) ≈ x · sigmoid(2 · sqrt(2 / π) · (x + 0.044715 x³)) (Hendrycks and Gimpel, 2016)
_GELU, _CUBE = 1.5957691216057308, 0.044715


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMS norms of queries and keys: over each head, or over all query heads and over all key heads (`whole`)."""

    epsilon: float
    whole: bool = False


def emit_norm(module: ir.Module, name: str, size: int, width: int, epsilon: float, *, add: bool = False) -> None:
    """RMS norm of each row, or with `add`, what is in `out` plus `factor` times it.

    Arguments: hidden float32 [T, size]; weight float32 [size]; out float32 [T, size]; T; factor float32 [1].
    """
    code = KernelCode(module, name, ("hidden", "weight", "out", "@count", "factor"), width)
    builder, arguments = code.builder, code.arguments
    with code.loop(0, arguments["count"]) as row:
        start = code.times(row, size)
        hidden, out = code.at(arguments["hidden"], start), code.at(arguments["out"], start)
        scale = _norm_scale(code, _squares(code, hidden, size), size, epsilon)
        with code.loop(0, size, width) as at:
            value = builder.fmul(code.load(code.at(hidden, at)), scale)
            value = builder.fmul(value, code.load(code.at(arguments["weight"], at)))
            if add:
                value = code.fma(value, code.broadcast(arguments["factor"]), code.load(code.at(out, at)))
            code.store(value, code.at(out, at))
    code.end()


def _squares(code: KernelCode, numbers: Value, size: int) -> Value:
    """The squares of `size` numbers, summed lane by lane."""
    # Two sums, so that one addition need not wait for the other.
    sums = [code.variable(code.vector, code.constant(0.0)) for _ in range(2 if size % (2 * code.width) == 0 else 1)]
    with code.loop(0, size, code.width * len(sums)) as at:
        for index, total in enumerate(sums):
            value = code.load(code.at(numbers, code.add(at, index * code.width)))
            total.set(code.fma(value, value, total.get()))
    squares = sums[0].get()
    for total in sums[1:]:
        squares = code.builder.fadd(squares, total.get())
    return squares


def emit_gate(module: ir.Module, name: str, size: int, width: int, activation: Activation, scale: float = 1.0) -> None:
    """act(gate · scale) · up, or act(up) where the activation is one without a gate.

    Arguments: widened float32 [T, 2 * size], gate first, or [T, size]; out float32 [T, row], of which the first `size`
    numbers of each row are written; row; T.
    """
    code = KernelCode(module, name, ("widened", "out", "@row", "@count"), width)
    builder, arguments = code.builder, code.arguments
    parts = 1 if activation in UNGATED else 2
    with code.loop(0, arguments["count"]) as row:
        widened = code.at(arguments["widened"], code.times(row, parts * size))
        out = code.at(arguments["out"], code.times(row, arguments["row"]))
        with code.loop(0, size, width) as at:
            value = code.load(code.at(widened, at))
            if activation in UNGATED:
                positive = code.maximum(value, code.constant(0.0))
                value = builder.fmul(positive, positive)
            else:
                value = value if scale == 1.0 else builder.fmul(value, code.constant(scale))
                value = builder.fmul(value, code.sigmoid(_sigmoid_argument(code, value, activation)))
                value = builder.fmul(value, code.load(code.at(widened, code.add(at, size))))
            code.store(value, code.at(out, at))
    code.end()


def _sigmoid_argument(code: KernelCode, gate: Value, activation: Activation) -> Value:
    """The y of which act(gate) is gate · sigmoid(y)."""
    if activation == "silu":
        return gate
    square = code.builder.fmul(gate, gate)
    inner = code.fma(square, code.constant(_CUBE), code.constant(1.0))
    return code.builder.fmul(code.builder.fmul(gate, inner), code.constant(_GELU))


def emit_attended_gate(module: ir.Module, name: str, size: int, offset: int, width: int) -> None:
    """attended · sigmoid(gate), in place.

    Arguments: attended float32 [T, size]; joined float32 [T, row], with the gates from `offset` on in each row; row; T.
    """
    code = KernelCode(module, name, ("attended", "joined", "@row", "@count"), width)
    builder, arguments = code.builder, code.arguments
    with code.loop(0, arguments["count"]) as row:
        out = code.at(arguments["attended"], code.times(row, size))
        gates = code.at(arguments["joined"], code.add(code.times(row, arguments["row"]), offset))
        with code.loop(0, size, width) as at:
            gate = code.sigmoid(code.load(code.at(gates, at)))
            code.store(builder.fmul(code.load(code.at(out, at)), gate), code.at(out, at))
    code.end()


def emit_store(module: ir.Module, name: str, shape: HeadShape, width: int, norm: HeadNorm | None) -> None:
    """Rotates queries and keys by their positions, in place, and stores keys and values in the pages of a layer.

    Arguments of the function, in order:
    joined     float32 [T, row], the joined projection first in each row
    row        numbers from a row of `joined` to the next
    rotations  float32 [P, dim], the cosine and the sine of each pair by position
    positions  int64 [T]
    slots      int64 [T]
    rows       the rows of the cache
    weights    float32 [(fold + 1) * kv_heads, dim] of the norms of queries and keys; not read without `norm`
    count      T
    layer
    """
    code = KernelCode(
        module,
        name,
        ("joined", "@row", "rotations", "positions", "slots", "rows", "weights", "@count", "@layer"),
        width,
    )
    builder, arguments = code.builder, code.arguments
    cache = Cache(code, shape.cache, arguments["rows"])
    parts = range(0, shape.dim, width)
    heads, keys = shape.fold * shape.kv_heads, shape.kv_heads
    with code.loop(0, arguments["count"]) as row:
        position = code.integer(arguments["positions"], row, I64)
        joined = code.at(arguments["joined"], code.times(row, arguments["row"]))
        slot = code.integer(arguments["slots"], row, I64)
        page_size = code.number(shape.page_size)
        page = cache.page(builder.sdiv(slot, page_size), arguments["layer"])
        token = builder.srem(slot, page_size)
        angles = code.at(arguments["rotations"], code.times(position, shape.dim))
        query, key = _Rotation(code, shape.dim, norm, angles), _Rotation(code, shape.dim, norm, angles)
        if norm is not None and norm.whole:
            for rotation, first, count in ((query, 0, heads), (key, heads, keys)):
                size = count * shape.dim
                squares = _squares(code, code.at(joined, first * shape.dim), size)
                rotation.scale = _norm_scale(code, squares, size, norm.epsilon)
        with code.loop(0, heads) as head:
            target = code.at(joined, code.times(head, shape.dim))
            for part, value in zip(parts, query.emit(joined, head), strict=True):
                code.store(value, code.at(target, part))
        with code.loop(0, keys) as head:
            cache.store(page, token, KEY, head, key.emit(joined, code.add(head, heads)))
            source = code.at(joined, code.times(code.add(head, heads + keys), shape.dim))
            cache.store(page, token, VALUE, head, [code.load(code.at(source, part)) for part in parts])
    code.end()


class _Rotation:
    """The code of the rotary embedding of one token's heads: pairs (a, b) become (a·cos - b·sin, b·cos + a·sin).

    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, section 3.4.
    """

    def __init__(self, code: KernelCode, dim: int, norm: HeadNorm | None, angles: Value) -> None:
        """`angles`: the address of the cosine and the sine of each pair."""
        self._code, self._dim, self._norm = code, dim, norm
        # One over the root mean square of all heads, where the norm is over all.
        self.scale: Value | None = None
        self._parts = range(0, dim, code.width)
        lanes = range(code.width)
        signs = code.constant([-1.0 if lane % 2 == 0 else 1.0 for lane in lanes])
        pairs = [code.load(code.at(angles, part)) for part in self._parts]
        self._cosines = [code.shuffle(pair, pair, [lane & ~1 for lane in lanes]) for pair in pairs]
        sines = [code.shuffle(pair, pair, [lane | 1 for lane in lanes]) for pair in pairs]
        self._sines = [code.builder.fmul(sine, signs) for sine in sines]
        self._swapped = [lane ^ 1 for lane in lanes]

    def emit(self, joined: Value, head: Value) -> list[Value]:
        """The vectors of a head of `joined`, normalized where there is a norm, and rotated."""
        code, builder = self._code, self._code.builder
        offset = code.times(head, self._dim)
        values = [code.load(code.at(joined, code.add(offset, part))) for part in self._parts]
        if self._norm is not None:
            scale = self.scale
            if scale is None:
                squares = builder.fmul(values[0], values[0])
                for value in values[1:]:
                    squares = code.fma(value, value, squares)
                scale = _norm_scale(code, squares, self._dim, self._norm.epsilon)
            weights = [code.load(code.at(code.arguments["weights"], code.add(offset, part))) for part in self._parts]
            values = [
                builder.fmul(builder.fmul(value, scale), weight) for value, weight in zip(values, weights, strict=True)
            ]
        return [
            code.fma(code.shuffle(value, value, self._swapped), sine, builder.fmul(value, cosine))
            for value, cosine, sine in zip(values, self._cosines, self._sines, strict=True)
        ]


def _norm_scale(code: KernelCode, squares: Value, count: int, epsilon: float) -> Value:
    """One over the root mean square of `count` values, in every lane, from a vector of sums of their `squares`."""
    builder = code.builder
    mean = builder.fmul(code.total(squares), code.constant(1.0 / count))
    return builder.fdiv(code.constant(1.0), code.square_root(builder.fadd(mean, code.constant(epsilon))))


# residual float32 [T, hidden], which the forward changes; normed, projected [T, hidden], joined [T, joined_row],
# attended [T, queries] and gated [T, gated_row] are its workspace, widened, prepared and scratch that of each thread,
# so many bytes apart. Of the layers, those from `first` to before `depth` run; `hidden` [T, hidden] is the residual
# after them with the last norm. If `opens`, `joined` of layer `depth` is made in place of it, and if `stores`, its keys
# and values are kept; if `resumes`, `joined` of layer `first` is there, and `mixed` [T, mixed_row], what its recurrence
# makes. `states` is their block 0, the others lie `block` bytes apart; see `StateStep` for segments and chains.
# `tree_attend` is the address of attention with trees where a step has some, else 0; path_start, places and path are
# what it reads more. The barrier is int32 [32] of zeros.
FRAME = (
    *("residual", "normed", "projected", "joined", "joined_row", "attended", "gated", "gated_row"),
    *("widened", "widened_bytes", "prepared", "prepared_bytes", "scratch", "scratch_bytes"),
    *("count", "positions", "slots", "rows", "pages", "context", "start", "sequences", "table"),
    *("tree_attend", "path_start", "places", "path"),
    *("layers", "first", "depth", "last_norm", "hidden", "factor", "one", "barrier"),
    *("resumes", "mixed", "mixed_row", "opens", "stores"),
    *("states", "block", "segments", "chains", "chain_count"),
)
# Queries, keys and values, and what a recurrence takes; back from attention, and from the recurrence; the MLP's.
# Of each product: the addresses of its code, of the code of `emit_prepare` (0 for none), of its panels and its bias;
# and the numbers of `emit_matmul`. All are 0 of a part that a layer does not have.
PRODUCTS = ("join", "out", "back", "widen", "down")
PRODUCT = ("multiply", "prepare", "weights", "bytes", "bias", "inputs", "outputs", "prepared", "factor")
# Of a compiled recurrence: the address of `emit_delta`'s code, and of its constants; its key heads; where its parts of
# the states begin in a block, in bytes; and where each of what it reads begins in a row of `joined`.
RULE = ("code", "constants", "heads", "conv", "states", "joined", "gate", "write", "inputs")
LAYER = (
    *(f"{product} {field}" for product in PRODUCTS for field in PRODUCT),
    *("before_mixer", "after_mixer", "before_mlp", "after_mlp", "head_norms", "rotations", "scaling", "window"),
    # The layer's row in a page.
    "number",
    *(f"rule {field}" for field in RULE),
)
BARRIER_NUMBERS = 32
# Turns of waiting for the other threads before a thread offers its core to others, some microseconds.
_PATIENCE = 1000
# Up to so many rows each thread normalizes all of them for itself: that takes less than waiting for another thread.
OWN_NORM_ROWS = 8
# With so many tiles for each thread, a tile more or less is no matter.
_EVEN_TILES = 16


@dataclass(frozen=True, slots=True)
class ForwardShape:
    """What a forward is compiled for.

    hidden:     the width of the hidden states
    epsilon:    of the RMS norms
    head_norm:  of queries and keys; None for none
    norms:      which of the four norms of a layer there are, in the order of `LAYER`
    softcap:    of the scores of attention; None for none
    gated:      whether what is attended has gates, which come after keys and values in the joined projection
    gate_scale: see `DecoderShape`
    """

    heads: HeadShape
    hidden: int
    activation: Activation
    epsilon: float
    head_norm: HeadNorm | None
    norms: tuple[bool, bool, bool, bool]
    softcap: float | None = None
    gated: bool = False
    gate_scale: float = 1.0

    @property
    def widened(self) -> int:
        """The parts of the first projection of an MLP: gate and `up`, or `up` alone."""
        return 1 if self.activation in UNGATED else 2


@dataclass(frozen=True, slots=True)
class Widths:
    """The vectors of each kernel: the widest of the machine that divide its rows."""

    machine: int
    hidden: int
    head: int

    @classmethod
    def of(cls, hidden: int, heads: HeadShape) -> Widths:
        """Raises LookupError where there are none."""
        machine = vector_width()
        widths = cls(machine, dividing(machine, hidden), dividing(machine, heads.dim))
        if heads.page_size % (widths.head // heads.block(widths.head)):
            raise LookupError("page size")
        return widths


def dividing(width: int, size: int) -> int:
    """`width`, halved until it divides `size`. Raises LookupError below 4."""
    while width and size % width:
        width //= 2
    if width < 4:
        raise LookupError("no vectors")
    return width


def gate_columns(width: int) -> int:
    """How many columns of gate and of up are computed at once: the panels of gate and of up take turns of as many."""
    return panels_at_once(width) * width


@cache
def forward_code(shape: ForwardShape) -> Library:
    """Functions `forward`, of frame, thread and threads, and `norm`, see `emit_norm`.

    Compiled once for each shape. Raises LookupError where the machine has no vectors for it.
    """
    return Library(forward_emitters(shape))


def forward_emitters(shape: ForwardShape) -> dict[str, Emitter]:
    """What `forward_code` compiles. Raises LookupError as it does."""
    widths, heads = Widths.of(shape.hidden, shape.heads), shape.heads
    gates = heads.queries + 2 * heads.kv_heads * heads.dim
    gate = partial(emit_attended_gate, size=heads.queries, offset=gates, width=widths.head)
    return {
        **({"attended gate": gate} if shape.gated else {}),
        "norm": partial(emit_norm, size=shape.hidden, width=widths.hidden, epsilon=shape.epsilon),
        "add norm": partial(emit_norm, size=shape.hidden, width=widths.hidden, epsilon=shape.epsilon, add=True),
        "gate": partial(
            emit_gate,
            size=gate_columns(widths.machine),
            width=widths.machine,
            activation=shape.activation,
            scale=shape.gate_scale,
        ),
        "store": partial(emit_store, shape=shape.heads, width=widths.head, norm=shape.head_norm),
        "attend": partial(emit_attend, shape=shape.heads, width=widths.head, softcap=shape.softcap),
        "wait": partial(emit_wait),
        "forward": partial(emit_forward, shape=shape, width=widths.machine),
    }


def emit_wait(module: ir.Module, name: str) -> None:
    """Waits until as many threads as there are have called it. Arguments: the barrier, threads."""
    code = KernelCode(module, name, ("barrier", "@threads"), 4)
    builder = code.builder
    arrived, turn = code.arguments["barrier"], code.at(code.arguments["barrier"], BARRIER_NUMBERS // 2, I32)
    with builder.if_then(builder.icmp_signed(">", code.arguments["threads"], code.number(1))):
        now = builder.load_atomic(turn, "acquire", 4, typ=I32)
        before = builder.atomic_rmw("add", arrived, ir.Constant(I32, 1), "acq_rel")
        others = builder.trunc(code.add(code.arguments["threads"], -1), I32)
        with builder.if_else(builder.icmp_signed("==", before, others)) as (last, early):
            with last:
                builder.atomic_rmw("xchg", arrived, ir.Constant(I32, 0), "monotonic")
                builder.atomic_rmw("add", turn, ir.Constant(I32, 1), "release")
            with early:
                waited = code.variable(I64, code.number(0))
                current = partial(builder.load_atomic, turn, "acquire", 4, typ=I32)
                with code.repeat(lambda: builder.icmp_signed("==", current(), now)):
                    # No `pause`: a virtual machine may leave its processor at each, and a barrier takes 50 µs then.
                    waited.set(code.add(waited.get(), 1))
                    with builder.if_then(builder.icmp_signed(">", waited.get(), code.number(_PATIENCE))):
                        builder.call(code.intrinsic("sched_yield", ir.FunctionType(I32, [])), [])
    code.end()


def emit_forward(module: ir.Module, name: str, shape: ForwardShape, width: int) -> None:
    """Arguments: the frame, the number of this thread, and how many there are."""
    ForwardCode(KernelCode(module, name, ("frame", "@thread", "@threads"), width), shape).emit()


class ForwardCode:
    """The code of a forward. `_layer` is the address of the row of the layer whose code is being written."""

    def __init__(self, code: KernelCode, shape: ForwardShape) -> None:
        self._code, self._shape = code, shape
        self._thread, self._threads = code.arguments["thread"], code.arguments["threads"]
        self._layer: Value = None
        self._columns = gate_columns(code.width)

    def emit(self) -> None:
        code = self._code
        with code.loop(self._number("first"), self._number("depth")) as index:
            self._layer = self._layer_at(index)
            with self._having("join"):
                self._mixer(index)
            with self._having("widen"):
                self._mlp()
        with code.builder.if_else(self._is_set("opens")) as (opens, ends):
            with opens:
                self._layer = self._layer_at(self._number("depth"))
                self._join()
                with code.builder.if_then(self._is_set("stores")):
                    self._store()
            with ends:
                self._norm("norm", self._pointer("residual"), self._pointer("last_norm"), self._pointer("hidden"))
                self._wait()
        code.end()

    def _mixer(self, index: Value) -> None:
        code, shape = self._code, self._shape
        is_first = code.builder.icmp_signed("==", index, self._number("first"))
        resumes = code.builder.and_(is_first, self._is_set("resumes"))
        with code.builder.if_then(code.builder.not_(resumes)):
            self._join()
        with self._having("out"):
            self._attend()
            attended, row = self._pointer("attended"), code.number(shape.heads.queries)
            self._to_residual("out", "after_mixer", shape.norms[1], attended, row)
        with self._having("back"):
            with code.builder.if_then(code.builder.icmp_signed("!=", self._of_layer("rule code", I64), code.number(0))):
                self._recur()
            self._to_residual("back", None, False, self._pointer("mixed"), self._number("mixed_row"))

    def _join(self) -> None:
        """The first projection of a layer's mixer."""
        code, shape = self._code, self._shape
        source = self._before("before_mixer", shape.norms[0])
        joined, joined_row = self._pointer("joined"), self._number("joined_row")
        self._multiply("join", source, code.number(shape.hidden), joined, joined_row, self._pointer("one"), add=False)
        self._wait()

    def _store(self) -> None:
        """Rotates queries and keys of this thread's rows, and keeps keys and values."""
        code = self._code
        joined, joined_row = self._pointer("joined"), self._number("joined_row")
        first, last = self._share(self._number("count"))
        offset = code.times(first, 8)
        self._call(
            "store",
            code.at(joined, code.times(first, joined_row)),
            joined_row,
            self._of_layer("rotations", POINTER),
            code.at(self._pointer("positions"), offset, I8),
            code.at(self._pointer("slots"), offset, I8),
            self._pointer("rows"),
            self._of_layer("head_norms", POINTER),
            code.builder.sub(last, first),
            self._of_layer("number", I64),
        )

    def _attend(self) -> None:
        code, shape = self._code, self._shape
        joined, joined_row = self._pointer("joined"), self._number("joined_row")
        self._store()
        self._wait()
        arguments = (
            joined,
            joined_row,
            self._pointer("rows"),
            self._pointer("pages"),
            self._pointer("context"),
            self._pointer("start"),
            self._pointer("attended"),
            self._own("scratch"),
            self._number("table"),
            self._of_layer("number", I64),
            self._number("sequences"),
            self._thread,
            self._threads,
            self._layer_place("scaling"),
            self._of_layer("window", I64),
            self._pointer("attended"),
        )
        tree_attend = self._number("tree_attend")
        with code.builder.if_else(code.builder.icmp_signed("==", tree_attend, code.number(0))) as (plain, trees):
            with plain:
                self._call("attend", *arguments)
            with trees:
                paths = (self._pointer("path_start"), self._pointer("places"), self._number("path"))
                kinds = tuple(argument.type for argument in (*arguments, *paths))
                self._call_address(tree_attend, kinds, *arguments, *paths)
        self._wait()
        if shape.gated:
            first, last = self._share(self._number("count"))
            attended = code.at(self._pointer("attended"), code.times(first, shape.heads.queries))
            rows = code.at(joined, code.times(first, joined_row))
            self._call("attended gate", attended, rows, joined_row, code.builder.sub(last, first))
            self._wait()

    def _recur(self) -> None:
        """What comes between the projections of a layer that keeps states."""
        code, joined_row = self._code, self._number("joined_row")
        units = code.builder.mul(self._number("chain_count"), self._of_layer("rule heads", I64))
        parts: list[Value] = []
        for part in ("joined", "gate", "write", "inputs"):
            parts += code.at(self._pointer("joined"), self._of_layer(f"rule {part}", I64)), joined_row
        states = [
            code.at(self._pointer("states"), self._of_layer(f"rule {part}", I64), I8) for part in ("conv", "states")
        ]
        arguments = (
            self._of_layer("rule constants", POINTER),
            *parts,
            self._pointer("mixed"),
            self._number("mixed_row"),
            *states,
            self._number("block"),
            self._pointer("segments"),
            self._pointer("chains"),
            self._number("chain_count"),
            *self._share(units),
        )
        kinds = tuple(argument.type for argument in arguments)
        self._call_address(self._of_layer("rule code", I64), kinds, *arguments)
        self._wait()

    def _mlp(self) -> None:
        code, shape, columns = self._code, self._shape, self._columns
        turn_columns = shape.widened * columns
        source = self._before("before_mlp", shape.norms[2])
        count, gated_row = self._number("count"), self._number("gated_row")
        # Gate and up take turns in the panels, so that a thread has both of its columns.
        panels = turn_columns // code.width
        turns = code.builder.sdiv(self._of_layer("widen outputs", I64), code.number(turn_columns))
        first, last = self._share(turns)
        widened = self._own("widened")
        self._prepare("widen", source, code.number(shape.hidden))
        near = near_rows(code, code.number(shape.hidden))
        with code.loop(0, count, near) as top, code.loop(first, last) as turn:
            begin, rows = code.times(turn, panels), code.least(code.builder.sub(count, top), near)
            # The product writes to the columns of its panels: these begin with the first of the thread's workspace.
            target = code.at(widened, code.times(turn, -turn_columns))
            self._part(
                "widen",
                code.at(source, code.times(top, shape.hidden)),
                code.number(shape.hidden),
                target,
                code.number(turn_columns),
                self._pointer("one"),
                False,
                begin,
                code.add(begin, panels),
                (top, rows),
            )
            gated = code.at(self._pointer("gated"), code.add(code.times(top, gated_row), code.times(turn, columns)))
            self._call("gate", widened, gated, gated_row, rows)
        self._wait()
        self._to_residual("down", "after_mlp", shape.norms[3], self._pointer("gated"), gated_row)

    def _before(self, norm: str, present: bool) -> Value:
        """What a product reads: the residual stream, normalized where there is a norm."""
        code, residual, count = self._code, self._pointer("residual"), self._number("count")
        if not present:
            return residual
        normed, weight = self._pointer("normed"), self._of_layer(norm, POINTER)
        own = code.at(normed, code.times(self._thread, OWN_NORM_ROWS * self._shape.hidden))
        few = code.builder.icmp_signed("<=", count, code.number(OWN_NORM_ROWS))
        with code.builder.if_else(few) as (alone, together):
            with alone:
                self._call("norm", residual, weight, own, count, self._pointer("factor"))
            with together:
                self._norm("norm", residual, weight, normed)
                self._wait()
        return code.builder.select(few, own, normed)

    def _to_residual(self, product: str, norm: str | None, present: bool, source: Value, row: Value) -> None:
        """Adds a product to the residual stream, normalized where there is a norm."""
        code = self._code
        hidden, residual = code.number(self._shape.hidden), self._pointer("residual")
        projected = self._pointer("projected") if present else residual
        factor = self._pointer("one") if present else self._layer_place(f"{product} factor")
        self._multiply(product, source, row, projected, hidden, factor, add=not present)
        self._wait()
        if present and norm is not None:
            self._norm("add norm", projected, self._of_layer(norm, POINTER), residual)
            self._wait()

    def _norm(self, function: str, source: Value, weight: Value, out: Value) -> None:
        """This thread's share of a norm of all rows."""
        code = self._code
        first, last = self._share(self._number("count"))
        offset = code.times(first, self._shape.hidden)
        count = code.builder.sub(last, first)
        self._call(function, code.at(source, offset), weight, code.at(out, offset), count, self._pointer("factor"))

    def _multiply(
        self, product: str, source: Value, row: Value, out: Value, out_row: Value, factor: Value, *, add: bool
    ) -> None:
        """This thread's share of a product's outputs."""
        code = self._code
        outputs = self._of_layer(f"{product} outputs", I64)
        panels = code.builder.sdiv(code.add(outputs, code.width - 1), code.number(code.width))
        step = panels_at_once(code.width)
        # Single panels where there are too few tiles for even shares.
        fine = code.builder.icmp_signed("<", panels, code.times(self._threads, step * _EVEN_TILES))
        by_tile, by_panel = self._share(panels, step), self._share(panels)
        first, last = (code.builder.select(fine, *both) for both in zip(by_panel, by_tile, strict=True))
        self._prepare(product, source, row)
        self._part(product, source, row, out, out_row, factor, add, first, last)

    def _part(
        self,
        product: str,
        source: Value,
        row: Value,
        out: Value,
        out_row: Value,
        factor: Value,
        add: bool,
        first: Value,
        last: Value,
        rows: tuple[Value, Value] | None = None,
    ) -> None:
        """The outputs of a product from panel `first` to before `last`.

        Of all rows, or of so many `rows` from one on, where source and target begin.
        """
        code = self._code
        top, count = (code.number(0), self._number("count")) if rows is None else rows
        prepared = code.at(self._own("prepared"), code.times(top, self._of_layer(f"{product} prepared", I64)))
        kinds = (POINTER, I64, POINTER, I64, POINTER, POINTER, POINTER, *[I64] * 6, POINTER, I64)
        self._call_address(
            self._of_layer(f"{product} multiply", I64),
            kinds,
            source,
            row,
            self._of_layer(f"{product} weights", POINTER),
            self._of_layer(f"{product} bytes", I64),
            self._of_layer(f"{product} bias", POINTER),
            prepared,
            out,
            out_row,
            count,
            self._of_layer(f"{product} inputs", I64),
            self._of_layer(f"{product} outputs", I64),
            first,
            last,
            factor,
            code.number(int(add)),
        )

    def _prepare(self, product: str, source: Value, row: Value) -> None:
        """What a product reads beside its inputs, where it reads something: each thread makes its own."""
        code = self._code
        address = self._of_layer(f"{product} prepare", I64)
        with code.builder.if_then(code.builder.icmp_signed("!=", address, code.number(0))):
            numbers = self._of_layer(f"{product} prepared", I64)
            kinds = (POINTER, I64, POINTER, I64, I64)
            self._call_address(address, kinds, source, row, self._own("prepared"), self._number("count"), numbers)

    def _share(self, count: Value, step: int = 1) -> tuple[Value, Value]:
        """This thread's part of `count`, in multiples of `step` but for the end."""
        code, builder = self._code, self._code.builder
        steps = builder.sdiv(count, code.number(step))
        first = code.times(builder.sdiv(builder.mul(steps, self._thread), self._threads), step)
        following = code.add(self._thread, 1)
        last = code.times(builder.sdiv(builder.mul(steps, following), self._threads), step)
        is_last = builder.icmp_signed("==", following, self._threads)
        return first, builder.select(is_last, count, last)

    def _wait(self) -> None:
        self._call("wait", self._pointer("barrier"), self._threads)

    def _call(self, function: str, *arguments: Value) -> None:
        self._code.builder.call(self._code.module.get_global(function), arguments)

    def _call_address(self, address: Value, kinds: tuple[Any, ...], *arguments: Value) -> None:
        function = self._code.builder.inttoptr(address, ir.FunctionType(ir.VoidType(), kinds).as_pointer())
        self._code.builder.call(function, arguments)

    def _place(self, name: str) -> Value:
        return self._code.at(self._code.arguments["frame"], FRAME.index(name), I64)

    def _number(self, name: str) -> Value:
        return self._code.builder.load(self._place(name), typ=I64)

    def _pointer(self, name: str) -> Value:
        return self._code.builder.load(self._place(name), typ=POINTER)

    def _own(self, name: str) -> Value:
        """The address of this thread's part of a workspace."""
        code = self._code
        return code.at(self._pointer(name), code.builder.mul(self._number(f"{name}_bytes"), self._thread), I8)

    def _is_set(self, name: str) -> Value:
        return self._code.builder.icmp_signed("!=", self._number(name), self._code.number(0))

    def _having(self, product: str) -> AbstractContextManager[Any]:
        """What follows is for layers that have this product."""
        builder = self._code.builder
        address = self._of_layer(f"{product} multiply", I64)
        return builder.if_then(builder.icmp_signed("!=", address, self._code.number(0)))  # type: ignore[no-any-return]

    def _layer_at(self, index: Value) -> Value:
        return self._code.at(self._pointer("layers"), self._code.times(index, len(LAYER)), I64)

    def _layer_place(self, name: str) -> Value:
        return self._code.at(self._layer, LAYER.index(name), I64)

    def _of_layer(self, name: str, kind: Any) -> Value:
        return self._code.builder.load(self._layer_place(name), typ=kind)
