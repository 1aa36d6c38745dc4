"""Which panels of a head each draw of a step is computed over: all, or those that hold an id it may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from typing import Literal as OneOf

import numpy as np

from qpdsl.executor.kernels.llvm.head_code import BLOCK

Numbers = np.ndarray[Any, np.dtype[Any]]
# Who is computed over what: all draws over all panels; those that may be sparse by their own masks, or over one list.
Arm = OneOf["dense", "rows", "union"]

# Up to so many rows a product takes no longer than its weights take to come from memory.
_FREE_ROWS = 4
# Listed panels are computed where they take at most this share of what all of them would, unless it was measured for
# the head on this device (`qpdsl profile`). A panel is read as fast alone as among its neighbours, so a shorter list is
# nearly always faster.
SPARSE_SHARE = 0.9


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
