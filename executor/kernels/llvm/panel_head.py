"""The compiled output head as a function of tensors: hidden states to tokens, over all ids or over those allowed.

A plan says which panels of the head each draw of a step is computed over: all, or those that hold an id it may take.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import torch

from qpdsl.executor.kernels.llvm.compile import TEAM, Library
from qpdsl.executor.kernels.llvm.head_code import BLOCK, FOUND, block_row, emit_choose, emit_draw
from qpdsl.executor.kernels.llvm.head_screen import HeadScreen
from qpdsl.executor.kernels.llvm.matmul_code import emit_listed
from qpdsl.executor.kernels.llvm.panels import FloatPanels, Panels
from qpdsl.executor.kernels.llvm.product import Product, threads_for

# A smaller head takes no longer than what finds its best panels. For more draws, products take longer than the weights
# take to come from memory.
_SCREENED_BYTES = 1 << 25
_SCREENED_DRAWS = 12
Numbers = np.ndarray[Any, np.dtype[Any]]
# Who is computed over what: all draws over all panels; those that may be sparse by their own masks, or over one list.
Arm = Literal["dense", "rows", "union"]
# Up to so many rows a product takes no longer than its weights take to come from memory.
_FREE_ROWS = 4
# Listed panels are computed where they take at most this share of what all of them would, unless it was measured for
# the head on this device (`qpdsl profile`). A panel is read as fast alone as among its neighbours, so a shorter list is
# nearly always faster.
SPARSE_SHARE = 0.9


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
        self.planner = HeadPlanner(weights.count, weights.width, share)
        # Whether draws may leave out ids that cannot win: of weights in eight bits there is no smaller copy.
        self.screens = isinstance(weights.panels, FloatPanels) and weights.nbytes >= _SCREENED_BYTES
        # The mask of draws that have none.
        self._any = np.full(-(-weights.count * weights.width // 32), -1, dtype=np.int32)
        self._any_address: int = self._any.ctypes.data

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
        arm: Arm | None = None,
        reach: Reach | None = None,
        screened: Numbers | None = None,
        margins: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draws from hidden states float32 [R, d]; the other numbers are host arrays [D], but for the bits.

        rows, keys, positions: int64; `positions`: how many tokens were drawn before under a key
        temperature: float32, 0 where the largest logit wins
        allowed:     int64, the row of `bits` that masks a draw, -1 for none
        sparse:      bool, whether the draw may compute the panels of its allowed ids alone
        bits:        int32 [masks, ids / 32], a bit for each id, the first in the lowest bit
        arm, reach:  see `HeadPlanner.plan`; no result depends on them
        screened:    bool, whether nobody reads a draw's log-probability, so that panels which cannot hold its best ids
                     need not be computed; None for no draw
        margins:     float32 [D], gets those between the two largest probabilities of the allowed ids at temperature 1,
                     where no draw is screened

        Returns tokens int64, log-probabilities at temperature 1 over the allowed ids float32, and the gaps between the
        best and the second best perturbed score float32, each [D]. A gap wider than 0.01 is infinite. A draw without an
        allowed id has token 0 and a log-probability that is no number. That of a screened draw is a number where its
        logits are, and says no more.
        """
        whole = None if bits is None else self._whole(bits)
        plan = self.planner.plan(allowed, sparse, whole, arm, reach)
        own = self._screened(plan, screened)
        if own is not None and not own.all():
            return self._in_two(own, (rows, temperature, keys, positions, allowed, sparse), hidden, bits, arm)
        draws = np.empty((4, len(rows)), dtype=np.int64)
        draws[1], draws[2], draws[3] = keys, positions, self._any_address
        if whole is not None:
            draws[3] = np.where(allowed >= 0, whole.ctypes.data + allowed * whole.strides[0], draws[3])
        if not plan.in_order:
            order = plan.order
            rows, draws, temperature = rows[order], np.take(draws, order, axis=1), temperature[order]
        x, first_row, draws[0] = _gathered(hidden, rows, plan)
        temperature = np.ascontiguousarray(temperature, dtype=np.float32)
        if own is not None:
            plan = self.planner.over(self._screen.panels(x, draws[0], temperature, *draws[1:]), len(rows))
        margins = torch.empty(len(rows), dtype=torch.float32) if margins is None else margins
        return self._drawn(x, first_row, draws, temperature, plan, margins)

    @cached_property
    def _screen(self) -> HeadScreen:
        return HeadScreen(self._product, self._finish, self._bias)

    def prepare(self) -> None:
        """Makes now what the first screened draw would, which can be kept beside the weights."""
        if self.screens:
            self._screen  # noqa: B018

    def _screened(self, plan: HeadPlan, screened: Numbers | None) -> Numbers | None:
        """Which draws are screened, bool [D]: those over all panels that may be, where they are few; None for none."""
        if screened is None or not self.screens or not screened.any():
            return None
        own = np.zeros(len(screened), dtype=np.bool_)
        own[plan.over_all(self._product.weights.count)] = True
        own &= screened
        return own if 0 < np.count_nonzero(own) <= _SCREENED_DRAWS else None

    def _in_two(
        self,
        own: Numbers,
        numbers: tuple[Numbers, Numbers, Numbers, Numbers, Numbers, Numbers],
        hidden: torch.Tensor,
        bits: Numbers | None,
        arm: Arm | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The draws of `own` bool [D], which are screened, by themselves, and the others by themselves."""
        results = [torch.empty(len(own), dtype=kind) for kind in (torch.int64, torch.float32, torch.float32)]
        for part, screened in ((own, own[own]), (~own, None)):
            rows, temperature, keys, positions, allowed, sparse = (number[part] for number in numbers)
            some = self(hidden, rows, temperature, keys, positions, allowed, sparse, bits, arm, screened=screened)
            for result, values in zip(results, some, strict=True):
                result[torch.from_numpy(part)] = values
        return results[0], results[1], results[2]

    def reach(self, allowed: Numbers, sparse: Numbers, bits: Numbers | None) -> Reach | None:
        """What each arm would read for such draws; None where they have none to choose from."""
        return self.planner.reach(allowed, sparse, None if bits is None else self._whole(bits))

    @property
    def weight_bytes(self) -> int:
        """The bytes that a draw over all ids reads."""
        weights = self._product.weights
        return int(weights.count * weights.panel_bytes)

    def _drawn(
        self,
        x: torch.Tensor,
        first_row: Numbers,
        draws: Numbers,
        temperature: Numbers,
        plan: HeadPlan,
        margins: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`draws` int64 [4, D]: rows, keys, positions and masks, as `emit_draw` has them."""
        weights, count, blocks = self._product.weights, draws.shape[1], len(plan.groups)
        if len(plan.counts) == 1:
            most, work = len(x), len(x) * len(plan.listed)
        else:
            rows_of = np.diff(first_row)
            most, work = int(rows_of.max()), int((rows_of * plan.lengths).sum())
        threads = max(1, min(threads_for(work * weights.inputs * self._width), blocks))
        bounds = _bounds(plan.starts, threads)
        sums = self._product.prepare(x, weights.inputs)
        room_row, size = (most + 2) * block_row(self._width), int(plan.sizes[-1])
        # One workspace: the room of the threads, what they found, and three numbers of each block of each draw.
        parts = [0, *accumulate((threads * room_row, threads * len(FOUND) * count, size, size, size))]
        space = torch.empty(parts[-1], dtype=torch.float32)
        start = space.data_ptr()
        room, found, peaks, seconds, totals = (start + 4 * part for part in parts[:-1])
        best = torch.empty(threads * count, dtype=torch.int64)
        start = draws.ctypes.data
        row_address, keys, positions, masks = (start + draws.strides[0] * row for row in range(4))
        listed, starts, groups, first_block, first_draw, sizes, order = plan.addresses
        arguments = (
            *(x.data_ptr(), weights.data.data_ptr(), self._bias.data_ptr(), sums.data_ptr(), listed, starts, groups),
            *(first_block, first_row.ctypes.data, first_draw, self._finish.data_ptr(), row_address),
            *(temperature.ctypes.data, keys, positions, masks, sizes, peaks, seconds, totals),
            *(room, found, best.data_ptr()),
            *(self._code.multiply, weights.panel_bytes, weights.inputs, self._product.prepared, room_row),
            *(count, self._vocabulary),
        )

        def run(thread: int) -> None:
            self._code.draw(*arguments, thread, bounds[thread], bounds[thread + 1])

        TEAM.run(threads, run)
        tokens = torch.empty(count, dtype=torch.int64)
        logprobs, gaps = torch.empty(count, dtype=torch.float32), torch.empty(count, dtype=torch.float32)
        outs = (tokens.data_ptr(), logprobs.data_ptr(), gaps.data_ptr(), margins.data_ptr())
        self._code.choose(found, best.data_ptr(), peaks, seconds, totals, sizes, order, *outs, count, threads)
        return tokens, logprobs, gaps

    def _whole(self, bits: Numbers) -> Numbers:
        """The masks, with bits for all ids."""
        words = -(-self._vocabulary // 32)
        if bits.shape[1] < words:
            bits = np.pad(bits, ((0, 0), (0, words - bits.shape[1])))
        return np.ascontiguousarray(bits)


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


def _gathered(hidden: torch.Tensor, rows: Numbers, plan: HeadPlan) -> tuple[torch.Tensor, Numbers, Numbers]:
    """The hidden states of each group of draws, each once; where those of each group begin; and the row of each draw.

    `rows`: by group. Rows of draws are counted from the first of their group.
    """
    own = rows.tolist()
    if len(plan.counts) == 1 and own == list(range(len(hidden))):
        return hidden.contiguous(), plan.first_draw, rows
    groups = np.repeat(np.arange(len(plan.counts)), plan.counts)
    if len(set(own)) == len(own):
        return hidden[torch.from_numpy(rows)], plan.first_draw, np.arange(len(own)) - plan.first_draw[groups]
    distinct, places = np.unique(groups * len(hidden) + rows, return_inverse=True)
    first_row = np.searchsorted(distinct, np.arange(len(plan.counts) + 1) * len(hidden))
    return hidden[torch.from_numpy(distinct % len(hidden))], first_row, places - first_row[groups]


def _bounds(starts: Numbers, threads: int) -> list[int]:
    """The blocks of each thread, an even share of the panels each."""
    if threads == 1:
        return [0, len(starts) - 1]
    wanted = starts[-1] * np.arange(1, threads) // threads
    return [0, *np.searchsorted(starts[:-1], wanted).tolist(), len(starts) - 1]


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """Draws in groups, each of which is computed over panels of its own, in blocks.

    order:    int64 [D], the numbers of the draws, by group
    in_order: whether they are in their own order
    counts:   int64 [groups], how many draws each has
    lengths:  int64 [groups], how many panels each has
    listed:   int32, the panels of each group, in order
    starts, groups, first_block, first_draw, sizes: see `emit_draw`
    addresses: of `listed` and the arrays after it, and of `order`
    """

    order: Numbers
    in_order: bool
    counts: Numbers
    lengths: Numbers
    listed: Numbers
    starts: Numbers
    groups: Numbers
    first_block: Numbers
    first_draw: Numbers
    sizes: Numbers
    addresses: tuple[int, ...]

    def over_all(self, panels: int) -> Numbers:
        """The numbers of the draws that are computed over all panels, of which there are so many, in order."""
        return np.sort(self.order[np.repeat(self.lengths == panels, self.counts)])

    @classmethod
    def of(cls, order: Numbers, counts: Numbers, listed: Numbers, starts: Numbers, groups: Numbers) -> HeadPlan:
        """`starts` and `groups` int64: of each block the place in the list, with the end of the list; and the group."""
        blocks = np.bincount(groups, minlength=len(counts))
        first_block = begin(blocks)
        arrays = (listed, starts, groups, first_block, begin(counts), begin(np.repeat(blocks, counts)))
        in_order = bool((order[1:] > order[:-1]).all())
        lengths = np.diff(starts[first_block])
        return cls(order, in_order, counts, lengths, *arrays, tuple(array.ctypes.data for array in (*arrays, order)))


@dataclass(frozen=True, slots=True)
class Reach:
    """What the ways to compute a step's draws read of a head.

    can:     bool [D], the draws that may be sparse
    line:    int64, which of their masks each of these has
    hits:    bool [masks, panels], the panels that hold an id that a mask allows
    lengths: int64 [masks], how many these are
    counts:  int64 [masks], how many draws have a mask
    union:   bool [panels], those of any mask
    dense, own, shared: about how many panels are read over all, by the draws' own lists, and by one list
    """

    can: Numbers
    line: Numbers
    hits: Numbers
    lengths: Numbers
    counts: Numbers
    union: Numbers
    dense: float
    own: float
    shared: float


class HeadPlanner:
    """Plans for a head of so many panels of `width` ids. `share`: see `SPARSE_SHARE`."""

    def __init__(self, panels: int, width: int, share: float) -> None:
        self._panels, self._width, self.share = panels, width, share
        self._per_block = BLOCK // width
        self._all = np.arange(panels, dtype=np.int32)
        self._all_starts = np.append(np.arange(0, panels, self._per_block), panels)
        self._dense: dict[int, HeadPlan] = {}

    def dense(self, draws: int) -> HeadPlan:
        """All draws over all panels."""
        plan = self._dense.get(draws)
        if plan is None:
            groups = np.zeros(len(self._all_starts) - 1, dtype=np.int64)
            plan = HeadPlan.of(np.arange(draws), np.array([draws]), self._all, self._all_starts, groups)
            self._dense[draws] = plan
        return plan

    def over(self, listed: Numbers, draws: int) -> HeadPlan:
        """All draws over the given panels, int32, in order."""
        starts = self._starts(listed, np.zeros(len(listed), dtype=np.int64))
        groups = np.zeros(len(starts) - 1, dtype=np.int64)
        return HeadPlan.of(np.arange(draws), np.array([draws]), listed, starts, groups)

    def plan(
        self,
        allowed: Numbers,
        sparse: Numbers,
        bits: Numbers | None,
        arm: Arm | None = None,
        reach: Reach | None = None,
    ) -> HeadPlan:
        """How a step's draws are computed: as `arm` says, or by what reads least of the head.

        allowed int64 [D], sparse bool [D], bits int32 [masks, words]: see `PanelHead`. `reach`: of these, if it is
        known. Without an arm: draws by themselves or those that may be sparse together, unless that reads nearly as
        much as all draws over all panels.
        """
        draws, panels = len(allowed), self._panels
        if arm != "dense" and reach is None:
            reach = self.reach(allowed, sparse, bits)
        if arm == "dense" or reach is None:
            return self.dense(draws)
        together = arm == "union" or (arm is None and reach.shared < reach.own)
        if arm is None and min(reach.shared, reach.own) > self.share * reach.dense:
            return self.dense(draws)
        can, line = reach.can, reach.line
        if together and len(reach.hits) > 1:
            flat = np.flatnonzero(reach.union)
            lengths, counts, few = np.array([len(flat)]), np.array([len(line)]), np.flatnonzero(can)
        else:
            flat, lengths, counts = np.flatnonzero(reach.hits.reshape(-1)), reach.lengths, reach.counts
            few = np.flatnonzero(can)[np.argsort(line, kind="stable")]
        owners = np.repeat(np.arange(len(lengths)), lengths)
        listed = (flat - owners * panels).astype(np.int32)
        order = few
        if rest := draws - len(few):
            order, counts = np.concatenate((order, np.flatnonzero(~can))), np.append(counts, rest)
            owners = np.concatenate((owners, np.full(panels, len(lengths))))
            listed = np.concatenate((listed, self._all))
        starts = self._starts(listed, owners)
        return HeadPlan.of(order, counts, listed, starts, owners[starts[:-1]])

    def reach(self, allowed: Numbers, sparse: Numbers, bits: Numbers | None) -> Reach | None:
        """What each way of computing a step's draws reads; None where no draw may be sparse. As for `plan`."""
        can = sparse & (allowed >= 0)
        few = int(np.count_nonzero(can))
        if not few or bits is None:
            return None
        panels, rest = self._panels, len(allowed) - few
        # What those take who are over all panels anyway.
        others = _cost(panels, rest) if rest else 0.0
        lines, line = _distinct(allowed[can])
        hits = self._hits(bits[lines])
        # Faster row by row than over an axis.
        lengths, counts = np.array([np.count_nonzero(row) for row in hits]), np.bincount(line)
        own = others + sum(map(_cost, lengths.tolist(), counts.tolist()))
        union, shared = hits[0], own
        if len(lines) > 1:
            union = hits.any(axis=0)
            shared = others + _cost(int(np.count_nonzero(union)), few)
        return Reach(can, line, hits, lengths, counts, union, _cost(panels, len(allowed)), own, shared)

    def _hits(self, bits: Numbers) -> Numbers:
        """Which panels hold an allowed id, bool [masks, panels]."""
        if self._width == 16:
            words = bits.view(np.uint16)
        else:
            words = bits.view(np.uint8)
            if self._width == 4:
                words = np.stack((words & 15, words >> 4), axis=-1).reshape(len(bits), -1)
        hits: Numbers = words[:, : self._panels] != 0
        return hits

    def _starts(self, listed: Numbers, owners: Numbers) -> Numbers:
        """The places in the list at which the panels of another block begin, and its end."""
        block = listed // self._per_block + owners * len(self._all_starts)
        first = np.zeros(min(1, len(listed)), dtype=np.int64)
        return np.concatenate((first, np.flatnonzero(block[1:] != block[:-1]) + 1, [len(listed)]))


def begin(counts: Numbers) -> Numbers:
    """Where parts of so many items begin, and the end of the last, int64."""
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _cost(panels: int, draws: int) -> float:
    """About how many panels are read; more rows than come free take as long as reading again."""
    return panels * max(1.0, draws / _FREE_ROWS)


def _distinct(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Each number once, in order, and which of them each number is."""
    if (numbers[1:] > numbers[:-1]).all():
        return numbers, np.arange(len(numbers))
    distinct, places = np.unique(numbers, return_inverse=True)
    return distinct, places
