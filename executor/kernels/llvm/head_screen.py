"""The panels of a head that can hold a draw's best ids, found with a copy of the head in eight bits.

A logit of the copy is off by at most |h|·|w − ŵ| (Cauchy and Schwarz), where w are the weights of an id and ŵ those of
the copy. So an id whose score cannot reach what another one has at least is neither first nor second. What is left, a
few panels as a rule, is computed from the weights themselves: the token is the same, and a quarter of the bytes of
float32 weights come from memory. The logits of all other ids are never known, so a draw has no log-probability.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import torch
from llvmlite import ir

from qpdsl.executor.kernels.llvm.compile import TEAM, Library
from qpdsl.executor.kernels.llvm.head_code import TOGETHER, BlockDraw, block_row, finish_block, multiply_block
from qpdsl.executor.kernels.llvm.kernel_code import F32, I8, I32, KernelCode
from qpdsl.executor.kernels.llvm.large_pages import aligned_bytes
from qpdsl.executor.kernels.llvm.matmul_code import emit_listed
from qpdsl.executor.kernels.llvm.panel_code import emit_pair
from qpdsl.executor.kernels.llvm.panels import FloatPanels, GroupedPanels, PanelWeights, aligned
from qpdsl.executor.kernels.llvm.product import Product, threads_for
from qpdsl.executor.kernels.llvm.sample import ROUNDING, SLACK
from qpdsl.executor.kernels.plain.philox import GUMBEL_MAX

_Numbers = np.ndarray[Any, np.dtype[Any]]
_Floats = np.ndarray[Any, np.dtype[np.float32]]

# What the copy and its errors are kept as beside the weights.
_COPY = "eight bits"
_LARGEST = 127
# No scale is smaller.
_TINY = 1e-30
# What float32 may lose in a sum of so many products, as a share of |h|·|w|, in the copy and in the weights.
_SUM_ERROR = 2.0**-22


class HeadScreen:
    """The copy of a head's weights, and how far its logits may be off."""

    def __init__(self, product: Product, finish: torch.Tensor, bias: torch.Tensor) -> None:
        """`finish` and `bias`: as `emit_draw` has them."""
        weights = product.weights
        self._finish, self._bias = finish, bias
        self._width, self._vocabulary, self._inputs = weights.width, weights.outputs, weights.inputs
        self._copy = EightBitCopy(weights)
        # Of each panel, how far a logit may be off where the hidden state is one unit long.
        self._errors: _Floats = (self._copy.errors.amax(dim=1) * finish[0].abs()).numpy()
        self._listed = np.arange(weights.count, dtype=np.int32)
        self._code = _library(weights.width)
        self._screen = self._code["screen"]
        self._product = Library({"multiply": partial(emit_listed, panels=self._copy.panels, width=weights.width)})
        self._multiply = self._product.address("multiply")

    @property
    def nbytes(self) -> int:
        """What the copy takes in memory."""
        return self._copy.data.nbytes + self._copy.errors.nbytes

    def panels(
        self,
        x: torch.Tensor,
        rows: _Numbers,
        temperature: _Floats,
        keys: _Numbers,
        positions: _Numbers,
        masks: _Numbers,
    ) -> _Numbers:
        """The numbers of the panels that some draw needs, in order, int32.

        Hidden states float32 [R, d]. Of each draw, [D]: its row, its temperature, its noise, the address of its mask.
        """
        count, panels = len(rows), len(self._listed)
        length = torch.linalg.vector_norm(x, dim=1).numpy()
        divisor = np.where(temperature > 0, temperature, 1.0).astype(np.float32)
        # In scores, of each draw and panel.
        errors = (length[rows] / divisor)[:, None] * self._errors
        tops = np.empty((count, panels), dtype=np.float32)
        noise = np.where(temperature > 0, np.float32(GUMBEL_MAX), np.float32(0.0))
        reach = (noise + 2 * errors.max(axis=1) + 2 * SLACK).astype(np.float32)
        threads = threads_for(len(x) * self._inputs * self._vocabulary)
        room_row = (len(x) + 2) * block_row(self._width)
        room = torch.empty(threads, room_row, dtype=torch.float32)
        best = np.full((threads, count), float("-inf"), dtype=np.float32)
        arguments = (
            *(x.data_ptr(), self._copy.data.data_ptr(), self._bias.data_ptr(), x.data_ptr(), self._listed.ctypes.data),
            *(self._finish.data_ptr(), rows.ctypes.data, temperature.ctypes.data, keys.ctypes.data),
            *(positions.ctypes.data, masks.ctypes.data, reach.ctypes.data, room.data_ptr(), best.ctypes.data),
            *(tops.ctypes.data, self._multiply, self._copy.data.shape[1], self._inputs, 0),
            *(room_row, len(x)),
            *(count, self._vocabulary, panels),
        )
        bounds = [panels * thread // threads // TOGETHER * TOGETHER for thread in range(threads)] + [panels]
        TEAM.run(threads, lambda thread: self._screen(*arguments, thread, bounds[thread], bounds[thread + 1]))
        least = (tops - errors).max(axis=1, keepdims=True)
        least -= 2 * SLACK + 4 * ROUNDING * np.abs(least)
        # What is no number is kept, and found by who computes it.
        return np.flatnonzero(~(tops + errors < least).all(axis=0)).astype(np.int32)


class EightBitCopy:
    """Weights in eight bits, each output with its own scale: kept beside the weights, or made.

    `data`: panels as the compiled product reads them, of the form `panels`. `errors`: |w − ŵ| of each output, with room
    for what sums in float32 lose, float32 [panels, width].
    """

    def __init__(self, weights: PanelWeights) -> None:
        form, inputs, width, count = weights.panels, weights.inputs, weights.width, weights.count
        assert isinstance(form, FloatPanels)
        self.panels = GroupedPanels(8, inputs, inputs, scaled=False, shifted=False, scale="float32", offset=None)
        size = count * aligned(self.panels.panel_bytes(inputs, width))

        def parts(whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return whole[:size].view(count, -1), whole[size:].view(torch.float32).view(count, width)

        def made() -> torch.Tensor:
            whole = aligned_bytes(size + 4 * count * width)
            _round(weights, form, *parts(whole))
            return whole

        self.data, self.errors = parts(weights.beside(_COPY, made))


def _round(weights: PanelWeights, form: FloatPanels, data: torch.Tensor, errors: torch.Tensor) -> None:
    """Rounds panels to `data` and `errors`; see `EightBitCopy`."""
    inputs, width, count = weights.inputs, weights.width, weights.count
    library = Library({"round": partial(emit_round, panels=form, width=width)})
    threads = threads_for(count * width * inputs)
    bounds = [count * thread // threads for thread in range(threads + 1)]
    addresses = weights.data.data_ptr(), data.data_ptr(), errors.data_ptr()
    sizes = (weights.panel_bytes, data.shape[1], inputs)
    TEAM.run(threads, lambda thread: library["round"](*addresses, *sizes, bounds[thread], bounds[thread + 1]))


def emit_round(module: ir.Module, name: str, panels: FloatPanels, width: int) -> None:
    """Rounds panels to eight bits. Arguments of the function, in order:

    weights, target, errors: see `EightBitCopy`
    bytes, target_bytes, inputs
    from, to     the first panel, and the one to stop before
    """
    numbers = ("@bytes", "@target_bytes", "@inputs", "@from", "@to")
    code = KernelCode(module, name, ("weights", "target", "errors", *numbers), width)
    given, builder = code.arguments, code.builder
    with code.loop(given["from"], given["to"]) as panel:
        source = code.at(given["weights"], builder.mul(panel, given["bytes"]), I8)
        target = code.at(given["target"], builder.mul(panel, given["target_bytes"]), I8)
        largest = code.variable(code.vector, code.constant(_TINY))
        with code.loop(0, given["inputs"], 2) as place:
            for value in emit_pair(code, panels, source, place):
                largest.set(code.maximum(code.magnitude(value), largest.get()))
        scale = builder.fdiv(largest.get(), code.constant(_LARGEST))
        code.store(scale, target)
        codes = code.at(target, 4 * width, I8)
        error, length = (code.variable(code.vector, code.constant(0.0)) for _ in range(2))
        with code.loop(0, given["inputs"], 2) as place:
            for step, value in enumerate(emit_pair(code, panels, source, place)):
                whole = code.rounded(builder.fdiv(value, scale))
                rounded = builder.sitofp(whole, code.vector)
                builder.store(
                    builder.trunc(whole, ir.VectorType(I8, width)),
                    code.at(codes, code.times(code.add(place, step), width), I8),
                    align=1,
                )
                rest = code.fma(builder.fneg(rounded), scale, value)
                error.set(code.fma(rest, rest, error.get()))
                length.set(code.fma(value, value, length.get()))
        inputs = builder.sitofp(code.splat(builder.trunc(given["inputs"], I32)), code.vector)
        lost = builder.fmul(inputs, code.constant(_SUM_ERROR))
        of_error = code.fma(code.square_root(error.get()), lost, code.square_root(error.get()))
        code.store(
            code.fma(code.square_root(length.get()), lost, of_error), code.at(given["errors"], code.times(panel, width))
        )
    code.end()


@cache
def _library(width: int) -> Library:
    return Library({"screen": partial(emit_screen, width=width)})


def emit_screen(module: ir.Module, name: str, width: int) -> None:
    """The best score of each panel by the copy. Arguments of the function, in order:

    x, weights, bias, sums, listed, finish, rows, temperature, keys, positions, masks: as in `emit_draw`; one group
    reach      float32 [D], by how much a draw's score may grow, and the best so far be too high
    room       float32 [threads, room_row], workspace
    best       float32 [threads, D], -inf before: the best score of the thread's panels
    tops       float32 [D, panels], the best score with its noise; -inf where it cannot be among the first two
    multiply   the address of the code of `emit_listed`
    bytes, inputs, sum_groups, room_row
    count      rows of x
    draws      D
    vocabulary, panels
    thread     the number of this thread
    from, to   its first panel, a multiple of `TOGETHER`, and the one to stop before
    """
    pointers = ("x", "weights", "bias", "sums", "listed", "finish", "rows", "temperature", "keys", "positions", "masks")
    numbers = ("@multiply", "@bytes", "@inputs", "@sum_groups", "@room_row", "@count", "@draws", "@vocabulary")
    ends = ("@panels", "@thread", "@from", "@to")
    code = KernelCode(module, name, (*pointers, "reach", "room", "best", "tops", *numbers, *ends), width)
    given, builder = code.arguments, code.builder
    room = code.at(given["room"], builder.mul(given["thread"], given["room_row"]))
    work = code.at(room, code.times(given["count"], block_row(width)))
    per_block = (block_row(width) - TOGETHER * width) // width
    with code.loop(given["from"], given["to"], per_block) as first:
        last = code.least(code.add(first, per_block), given["to"])
        multiply_block(code, room, code.number(0), given["count"], (first, last, given["to"]))
        finish_block(code, room, given["count"], builder.sub(last, first))
        with code.loop(0, given["draws"]) as draw:
            _Screened(code, room, work, draw, first, last).emit()
    code.end()


class _Screened(BlockDraw):
    """The code for the best scores of the panels of a block, in one draw."""

    def emit(self) -> None:
        code, builder, given = self._code, self._code.builder, self._code.arguments
        self._masked()
        lowest = code.constant(float("-inf"))
        tops = code.at(given["tops"], builder.mul(self._draw, given["panels"]))
        reach = builder.load(code.at(given["reach"], self._draw), typ=F32)
        divisor = code.splat(self._divisor)
        place_of_best = code.at(given["best"], code.add(builder.mul(given["thread"], given["draws"]), self._draw))
        best = code.variable(F32, builder.load(place_of_best, typ=F32))
        with code.loop(self._first, self._last, TOGETHER) as start:
            places = [code.add(start, number) for number in range(TOGETHER)]
            raw = [code.load(self._at(self._raw, place)) for place in places]
            scores = [code.variable(code.vector, builder.fdiv(values, divisor)) for values in raw]
            highest = code.largest([score.get() for score in scores])
            top = code.lane(code.folded(highest, 1, code.maximum), 0)
            # Also where it is no number.
            out = builder.fcmp_ordered("<", top, builder.fsub(best.get(), reach))
            with builder.if_else(out) as (far, near):
                with far:
                    for score in scores:
                        score.set(lowest)
                with near:
                    self._noised(scores, places)
            for place, score in zip(places, scores, strict=True):
                value = code.lane(code.folded(score.get(), 1, code.maximum), 0)
                higher = builder.fcmp_ordered(">", value, best.get())
                best.set(builder.select(higher, value, best.get()))
                with builder.if_then(builder.icmp_signed("<", place, self._last)):
                    builder.store(value, code.at(tops, place))
        builder.store(best.get(), place_of_best)
