"""The compiled output head as a function of tensors: hidden states to tokens, over all ids or over those allowed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from qpdsl.executor.kernels.llvm.head_code import BLOCK, FOUND, block_row, emit_choose, emit_draw
from qpdsl.executor.kernels.llvm.jit.compile import Library
from qpdsl.executor.kernels.llvm.jit.team import TEAM
from qpdsl.executor.kernels.llvm.matmul.emit import emit_listed
from qpdsl.executor.kernels.llvm.matmul.panels import Panels
from qpdsl.executor.kernels.llvm.matmul.product import Product, threads_for

Numbers = np.ndarray[Any, np.dtype[Any]]

# Up to so many rows a product takes no longer than its weights take to come from memory.
_FREE_ROWS = 4
# A head computes listed panels where they are at most this share of all, unless it is told otherwise. A panel is read
# as fast alone as among its neighbours, so a shorter list is nearly always faster.
SPARSE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class _Plan:
    """Draws in groups, each of which is computed over panels of its own.

    order:  int64 [D], the numbers of the draws, by group
    counts: int64 [groups], how many draws each has
    listed: int32, the panels of each group, in order
    owners: int64, the group of each of them
    """

    order: Numbers
    counts: Numbers
    listed: Numbers
    owners: Numbers


class PanelHead:
    """Draws tokens from a head's panels. No result depends on how draws are grouped, nor on the number of threads."""

    def __init__(
        self, product: Product, scale: float = 1.0, softcap: float | None = None, share: float = SPARSE_SHARE
    ) -> None:
        """`scale` and `softcap`: what is done to logits; `share`: see `SPARSE_SHARE`."""
        self._product = product
        weights = product.weights
        self._width, self._vocabulary = weights.width, weights.outputs
        self._code = _HeadCode.of(weights.panels, weights.width)
        self._finish = torch.tensor([scale, softcap or 0.0], dtype=torch.float32)
        self._bias = torch.zeros(weights.count * weights.width, dtype=torch.float32)
        self._bias[: weights.outputs] = product.bias
        self._share = share
        self._all = np.arange(weights.count, dtype=np.int32)
        self._none = np.zeros(weights.count, dtype=np.int64)
        self._all_starts = np.append(np.arange(0, weights.count, BLOCK // self._width), weights.count)
        # Masks of draws that have none; one word more than there are ids.
        self._any = np.full(-(-weights.count * weights.width // 32) + 1, -1, dtype=np.int32)

    def __call__(
        self,
        hidden: torch.Tensor,
        rows: Numbers,
        temperature: Numbers,
        keys: Numbers,
        positions: Numbers,
        allowed: Numbers,
        sparse: Numbers,
        bits: Numbers | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draws from hidden states float32 [R, d]; the other numbers are host arrays [D], but for the bits.

        rows, keys, positions: int64; `positions`: how many tokens were drawn before under a key
        temperature: float32, 0 where the largest logit wins
        allowed:     int64, the row of `bits` that masks a draw, -1 for none
        sparse:      bool, whether the draw may compute the panels of its allowed ids alone
        bits:        int32 [masks, ids / 32], a bit for each id, the first in the lowest bit

        Returns tokens int64, log-probabilities at temperature 1 over the allowed ids float32, and the gaps between the
        best and the second best perturbed score float32, each [D]. A gap wider than 0.01 is infinite. A draw without an
        allowed id has token 0 and a log-probability that is no number.
        """
        count = len(rows)
        tokens = torch.empty(count, dtype=torch.int64)
        logprobs, gaps = torch.empty(count, dtype=torch.float32), torch.empty(count, dtype=torch.float32)
        whole = None if bits is None else self._whole(bits)
        plan = self._plan(allowed, sparse, whole)
        order = plan.order
        masks = np.full(count, self._any.ctypes.data, dtype=np.int64)
        if whole is not None:
            masks = np.where(allowed >= 0, whole.ctypes.data + allowed * whole.strides[0], masks)[order]
        x, first_row, places = _gathered(hidden, rows[order], plan.counts)
        starts = self._starts(plan)
        groups = plan.owners[starts[:-1]]
        first_block, first_draw = _begin(np.bincount(groups, minlength=len(plan.counts))), _begin(plan.counts)
        sizes = _begin(np.repeat(np.diff(first_block), plan.counts))
        weights, blocks = self._product.weights, len(groups)
        rows_of = np.diff(first_row)
        work = int((rows_of[groups] * np.diff(starts)).sum()) * weights.inputs * self._width
        threads = max(1, min(threads_for(work), blocks))
        bounds = _bounds(starts, threads)
        room_row = (int(rows_of.max()) + 2) * block_row(self._width)
        sums = self._product.sums(x, weights.inputs)
        room = torch.empty(threads * room_row, dtype=torch.float32)
        found = torch.empty(threads * len(FOUND) * count, dtype=torch.float32)
        best = torch.empty(threads * count, dtype=torch.int64)
        extent = torch.empty(2, int(sizes[-1]), dtype=torch.float32)
        draws = [array[order] for array in (temperature, keys, positions)]
        arrays = [plan.listed, starts, groups, first_block, first_row, first_draw]
        read = [places, *draws, masks, sizes]
        peaks, totals = extent[0].data_ptr(), extent[1].data_ptr()
        arguments = (
            *(x.data_ptr(), weights.data.data_ptr(), self._bias.data_ptr(), sums.data_ptr()),
            *(array.ctypes.data for array in arrays),
            self._finish.data_ptr(),
            *(array.ctypes.data for array in read),
            *(peaks, totals, room.data_ptr(), found.data_ptr(), best.data_ptr()),
            *(self._code.multiply, weights.panel_bytes, weights.inputs, self._product.groups, room_row),
            *(count, self._vocabulary),
        )

        def run(thread: int) -> None:
            self._code.draw(*arguments, thread, bounds[thread], bounds[thread + 1])

        TEAM.run(threads, run)
        outs = (tokens.data_ptr(), logprobs.data_ptr(), gaps.data_ptr())
        ends = (found.data_ptr(), best.data_ptr(), peaks, totals, sizes.ctypes.data, order.ctypes.data)
        self._code.choose(*ends, *outs, count, threads)
        return tokens, logprobs, gaps

    def _whole(self, bits: Numbers) -> Numbers:
        """The masks, with bits for all ids."""
        words = -(-self._vocabulary // 32)
        if bits.shape[1] < words:
            bits = np.pad(bits, ((0, 0), (0, words - bits.shape[1])))
        return np.ascontiguousarray(bits)

    def _plan(self, allowed: Numbers, sparse: Numbers, bits: Numbers | None) -> _Plan:
        """Draws by themselves, those that may be sparse together, or with all others over all panels: what is least."""
        every, draws = np.arange(len(allowed)), len(allowed)
        can = sparse & (allowed >= 0)
        few = int(np.count_nonzero(can))
        together = _Plan(every, np.array([draws]), self._all, self._none)
        if not few or bits is None:
            return together
        most = self._share * _cost(len(self._all), draws)
        rest = draws - few
        # What the others take, who are over all panels anyway.
        dense = _cost(len(self._all), rest) if rest else 0.0
        lines, line = np.unique(allowed[can], return_inverse=True)
        hits = self._hits(bits[lines])
        counts = np.bincount(line)
        cost = dense + sum(map(_cost, hits.sum(axis=1).tolist(), counts.tolist()))
        order = np.flatnonzero(can)[np.argsort(line, kind="stable")]
        if len(lines) > 1:
            union = hits.any(axis=0, keepdims=True)
            shared = dense + _cost(int(union.sum()), few)
            if shared < cost:
                cost, hits, counts = shared, union, np.array([few])
        if cost > most:
            return together
        owners, listed = np.nonzero(hits)
        listed = listed.astype(np.int32)
        if rest:
            order, counts = np.concatenate((order, every[~can])), np.append(counts, rest)
            listed = np.concatenate((listed, self._all))
            owners = np.concatenate((owners, self._none + len(hits)))
        return _Plan(order, counts, listed, owners)

    def _hits(self, bits: Numbers) -> Numbers:
        """Which panels hold an allowed id, bool [masks, panels]."""
        if self._width == 16:
            words = bits.view(np.uint16)
        else:
            words = bits.view(np.uint8)
            if self._width == 4:
                words = np.stack((words & 15, words >> 4), axis=-1).reshape(len(bits), -1)
        return words[:, : len(self._all)] != 0

    def _starts(self, plan: _Plan) -> Numbers:
        """The places in the list at which the panels of another block begin, and its end, int64."""
        listed = plan.listed
        if listed is self._all:
            return self._all_starts
        per_block = BLOCK // self._width
        block = listed // per_block + plan.owners * (len(self._all) // per_block + 1)
        return np.concatenate(([0], np.flatnonzero(block[1:] != block[:-1]) + 1, [len(listed)] * bool(len(listed))))


class _HeadCode:
    """The compiled code for panels of one form."""

    def __init__(self, panels: Panels, width: int) -> None:
        self._product = Library({"multiply": partial(emit_listed, panels=panels, width=width)})
        self._library = _library(width)
        self.multiply = self._product.address("multiply")
        self.draw = self._library["draw"]
        self.choose = self._library["choose"]

    @staticmethod
    @cache
    def of(panels: Panels, width: int) -> _HeadCode:
        return _HeadCode(panels, width)


@cache
def _library(width: int) -> Library:
    return Library({"draw": partial(emit_draw, width=width), "choose": partial(emit_choose)})


def _cost(panels: int, draws: int) -> float:
    """About how many panels are read; more rows than come free take as long as reading again."""
    return panels * max(1.0, draws / _FREE_ROWS)


def _begin(counts: Numbers) -> Numbers:
    """Where parts of so many items begin, and the end of the last, int64."""
    return np.concatenate(([0], np.cumsum(counts)), dtype=np.int64)


def _gathered(hidden: torch.Tensor, rows: Numbers, counts: Numbers) -> tuple[torch.Tensor, Numbers, Numbers]:
    """The hidden states of each group of draws, each once; where those of each group begin; and the row of each draw.

    Rows of draws are counted from the first of their group.
    """
    own = rows.tolist()
    if len(counts) == 1 and own == list(range(len(hidden))):
        return hidden.contiguous(), _begin(counts), rows
    groups = np.repeat(np.arange(len(counts)), counts)
    distinct, places = np.unique(groups * len(hidden) + rows, return_inverse=True)
    first_row = np.searchsorted(distinct, np.arange(len(counts) + 1) * len(hidden))
    return hidden[torch.from_numpy(distinct % len(hidden))].contiguous(), first_row, places - first_row[groups]


def _bounds(starts: Numbers, threads: int) -> list[int]:
    """The blocks of each thread, an even share of the panels each."""
    if threads == 1:
        return [0, len(starts) - 1]
    wanted = starts[-1] * np.arange(1, threads) // threads
    return [0, *np.searchsorted(starts[:-1], wanted).tolist(), len(starts) - 1]
