"""Finds the prefixes that decoding sequences share, from their page tables alone.

Sorting by page ids puts each sequence next to those that share most with it. So every shared prefix is a run of
neighbours, and runs nest as the prefixes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from qpdsl.executor.kernels.data.paged_batch import Cascade

# A level costs part of a launch and a merge, so each sequence reads shorter ranges by itself.
LEAST_TOKENS = 128
# The most levels: each adds partial results to every sequence.
DEEPEST = 3

# (first, last, begin, end, level) as in `Cascade.tiles`.
Tile = tuple[int, int, int, int, int]


def plan(
    tables: Sequence[Sequence[int]],
    contexts: Sequence[int],
    page_size: int,
    device: torch.device,
    least: int = LEAST_TOKENS,
    deepest: int = DEEPEST,
) -> Cascade | None:
    """The cascade of sequences with page ids `tables` and `contexts` tokens (the new one included); None without one.

    Shared ranges have `least` tokens or more, in at most `deepest` levels. Only whole pages before the new token are
    shared. It takes about 4 µs a sequence on the host, so keep the result until a sequence joins or leaves: contexts
    grow outside the shared ranges, and only `suffix` must grow with them.
    """
    prefixes = [
        np.asarray(table[: max(length - 1, 0) // page_size], dtype=np.int32)
        for table, length in zip(tables, contexts, strict=True)
    ]
    order = sorted(range(len(prefixes)), key=lambda index: prefixes[index].tobytes())
    common = [_common(prefixes[a], prefixes[b]) for a, b in pairwise(order)]
    tiles: list[Tile] = []
    _nest(common, 0, len(order), 0, 0, max(1, -(-least // page_size)), deepest, tiles)
    if not tiles:
        return None
    start, levels = [0] * len(prefixes), [0] * len(prefixes)
    for first, last, _, end, level in tiles:
        for sequence in order[first:last]:
            # A deeper range comes after the one that contains it.
            start[sequence], levels[sequence] = end * page_size, level + 1
    scaled = [(first, last, begin * page_size, end * page_size, level) for first, last, begin, end, level in tiles]
    return Cascade(
        torch.tensor(order, dtype=torch.int32, device=device),
        torch.tensor(scaled, dtype=torch.int32, device=device),
        torch.tensor(start, dtype=torch.int32, device=device),
        torch.tensor(levels, dtype=torch.int32, device=device),
        width=max(last - first for first, last, *_ in scaled),
        depth=max(levels),
        prefix=max(end - begin for _, _, begin, end, _ in scaled),
        suffix=max(length - begin for length, begin in zip(contexts, start, strict=True)),
    )


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading pages two prefixes share."""
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    return int(differ.argmax()) if differ.any() else length


def _nest(
    common: list[int], low: int, high: int, depth: int, level: int, least: int, deepest: int, tiles: list[Tile]
) -> None:
    """Adds the tiles (in pages) among the neighbours low to high, which share `depth` pages of tiles above."""
    if level == deepest:
        return
    first = low
    while first < high - 1:
        last = first
        while last < high - 1 and common[last] >= depth + least:
            last += 1
        if last > first:
            end = min(common[first:last])
            tiles.append((first, last + 1, depth, end, level))
            _nest(common, first, last + 1, end, level + 1, least, deepest, tiles)
        first = last + 1
