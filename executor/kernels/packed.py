"""A step's numbers packed into one tensor, which one copy takes to the device.

`Sizes` says how many there are of each; `pack` lays them out on the host, and `unpack` gives views of the tensor on the
device. Two steps with equal sizes differ only in the contents, so one captured CUDA graph serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Paths, PrefixCascade

# Every part begins at a multiple of 16 bytes (in int32): for other pointers kernels would be compiled once more.
_ALIGNED = 4

Numbers = np.ndarray[Any, np.dtype[Any]]


class Sizes(NamedTuple):
    """The sizes of a step over `tokens` rows of `sequences` sequences.

    width:   pages of a sequence in the page table
    wanted:  rows whose hidden states are read
    decodes, longest, longest_query: as in `PagedBatch`
    tiles:   how many a cascade has; it and what follows are 0 without one
    members: `PrefixCascade.width`
    depth, prefix, suffix: as in `PrefixCascade`
    path:    places of a path in a tree, 0 where there are no trees
    """

    tokens: int
    sequences: int
    width: int
    wanted: int
    decodes: int
    longest: int
    longest_query: int
    tiles: int = 0
    members: int = 0
    depth: int = 0
    prefix: int = 0
    suffix: int = 0
    path: int = 0

    @property
    def parts(self) -> list[int]:
        """The int32 that each part takes: three parts of int64, four of int32, four for a cascade and two for trees."""
        parts = [2 * self.tokens] * 3 + [self.sequences, self.sequences + 1, self.sequences * self.width, self.wanted]
        if self.tiles:
            parts += [self.sequences, 5 * self.tiles, self.sequences, self.sequences]
        if self.path:
            parts += [self.sequences, self.sequences * self.path]
        return parts

    @property
    def room(self) -> list[int]:
        """The int32 that each part takes with its padding."""
        return [-(-part // _ALIGNED) * _ALIGNED for part in self.parts]


class Unpacked(NamedTuple):
    """Views of a packed step: `tokens`, `positions` int64 [T], `wanted` int32 [W], and what attention reads."""

    tokens: torch.Tensor
    positions: torch.Tensor
    wanted: torch.Tensor
    batch: PagedBatch


def pack(sizes: Sizes, parts: Sequence[Numbers | Sequence[int]]) -> Numbers:
    """The parts of a step as one int32 [n]; a part that is shorter than its size is filled with zeros.

    In order: tokens, positions, slots; context, query_start, pages, wanted; and members, tiles, start, levels of a
    cascade; and start, places of the paths in trees.
    """
    packed = np.zeros(sum(sizes.room), dtype=np.int32)
    bounds = pairwise(accumulate(sizes.room, initial=0))
    for index, ((first, last), part) in enumerate(zip(bounds, parts, strict=True)):
        target = packed[first:last]
        if index < 3:
            target = target.view(np.int64)
        values = np.asarray(part).reshape(-1)
        target[: values.size] = values
    return packed


def tokens_of(packed: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    """A view of the `tokens` int64 [T] of the step in `packed`."""
    return packed[: 2 * sizes.tokens].view(torch.int64)


def unpack(packed: torch.Tensor, sizes: Sizes) -> Unpacked:
    """Views of the step in `packed` int32 [n], on any device; nothing is copied."""
    parts = [part[:count] for part, count in zip(torch.split(packed, sizes.room), sizes.parts, strict=True)]
    tokens, positions, slots = (part.view(torch.int64) for part in parts[:3])
    context, query_start, pages, wanted, *optional = parts[3:]
    cascade = paths = None
    if sizes.path:
        *optional, start, places = optional
        paths = Paths(start, places.view(-1, sizes.path))
    if optional:
        members, tiles, start, levels = optional
        cascade = PrefixCascade(
            members, tiles.view(-1, 5), start, levels, sizes.members, sizes.depth, sizes.prefix, sizes.suffix
        )
    batch = PagedBatch(
        pages.view(sizes.sequences, sizes.width),
        context,
        slots,
        query_start,
        sizes.decodes,
        sizes.longest,
        sizes.longest_query,
        cascade,
        paths,
    )
    return Unpacked(tokens, positions, wanted, batch)
