"""Finds the prefixes that decoding sequences share, from their page tables alone, and whether it is worth it.

Sorting by page ids puts each sequence next to those that share most with it. So every shared prefix is a run of
neighbours, and runs nest as the prefixes do.

A cascade takes two launches a layer more than attention without one, and its bounds are sizes of a step for which a
graph is captured. So it is taken where the keys and values that it does not read again are more than the device reads
in the time of two launches (vLLM's `use_cascade_attention` weighs waves of thread blocks to the same end; FlashInfer
leaves it to the caller).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from qpdsl.executor.kernels.data.paged_batch import PrefixCascade

# A level costs partial results, so each sequence reads shorter ranges by itself.
MIN_TOKENS = 128
# The most levels: each adds partial results to every sequence.
DEEPEST = 3
# What two launches of a captured graph take, with the kernels' own start and end: an estimate, not measured on a GPU.
_LAUNCH_SECONDS = 5e-6
# For devices that do not tell how fast their memory is: that of an L40S.
_BYTES_A_SECOND = 864e9

Numbers = np.ndarray[Any, np.dtype[np.int32]]
# (first, last, begin, end, level) as in `PrefixCascade.tiles`.
Tile = tuple[int, int, int, int, int]


@cache
def launch_bytes(device: torch.device) -> int:
    """What a CUDA device reads in the time of the launches that a cascade adds; 0 for others, which launch nothing."""
    if device.type != "cuda":
        return 0
    told = torch.cuda.get_device_properties(device)
    # In kHz and bits; memory moves twice a cycle. Older versions of torch tell neither.
    rate = 2e3 * getattr(told, "memory_clock_rate", 0) * getattr(told, "memory_bus_width", 0) / 8
    return int(_LAUNCH_SECONDS * (rate or _BYTES_A_SECOND))


def plan(
    tables: Sequence[Sequence[int]],
    contexts: Sequence[int],
    page_size: int,
    device: torch.device,
    least: int = MIN_TOKENS,
    deepest: int = DEEPEST,
) -> PrefixCascade | None:
    """The cascade of sequences with page ids `tables` and `contexts` tokens (the new one included); None without one.

    As `plan_pages`, for the whole pages before each sequence's new token, and for any saving.
    """
    pages = np.zeros((len(tables), max(map(len, tables), default=0)), dtype=np.int32)
    for row, table in enumerate(tables):
        pages[row, : len(table)] = table
    counts = np.array([max(length - 1, 0) // page_size for length in contexts], dtype=np.int64)
    counts = np.minimum(counts, [len(table) for table in tables])
    cascade = plan_pages(pages, counts, page_size, least, deepest)
    return None if cascade is None else of_contexts(cascade, np.asarray(contexts), device)


def plan_pages(
    pages: Numbers,
    counts: np.ndarray[Any, np.dtype[np.int64]],
    page_size: int,
    least: int = MIN_TOKENS,
    deepest: int = DEEPEST,
    worth: int = 0,
) -> PrefixCascade | None:
    """The cascade of sequences with the page tables `pages` [B, P], of which the first `counts` [B] may be shared.

    On the host, and with no `suffix` yet. None where it would save `worth` tokens or fewer: those that sequences do not
    read as another reads them for all. Shared ranges have `least` tokens or more, in at most `deepest` levels. The host
    takes about 2 µs a sequence of 4096 tokens in pages of 16. So keep the result until a sequence joins or leaves:
    contexts grow outside the shared ranges.
    """
    if len(pages) < 2 or (int(counts.sum()) - int(counts.max())) * page_size <= worth:
        return None
    width = max(1, int(counts.max()))
    own = np.where(np.arange(width) < counts[:, None], pages[:, :width], -1).astype(np.int32)
    lines = own.tobytes()
    order = sorted(range(len(own)), key=lambda row: lines[4 * width * row : 4 * width * (row + 1)])
    ordered, lengths = own[order], counts[order]
    differ = ordered[1:] != ordered[:-1]
    same = np.where(differ.any(axis=1), differ.argmax(axis=1), width)
    common = np.minimum(same, np.minimum(lengths[1:], lengths[:-1])).tolist()
    tiles: list[Tile] = []
    _nest(common, 0, len(order), 0, 0, max(1, -(-least // page_size)), deepest, tiles)
    saved = sum((last - first - 1) * (end - begin) for first, last, begin, end, _ in tiles) * page_size
    if not tiles or saved <= worth:
        return None
    members = np.array(order, dtype=np.int32)
    start, levels = np.zeros(len(order), dtype=np.int32), np.zeros(len(order), dtype=np.int32)
    for first, last, _, end, level in tiles:
        # A deeper range comes after the one that contains it.
        start[members[first:last]], levels[members[first:last]] = end * page_size, level + 1
    scaled = [(first, last, begin * page_size, end * page_size, level) for first, last, begin, end, level in tiles]
    return PrefixCascade(
        torch.from_numpy(members),
        torch.tensor(scaled, dtype=torch.int32),
        torch.from_numpy(start),
        torch.from_numpy(levels),
        width=max(last - first for first, last, *_ in scaled),
        depth=int(levels.max()),
        prefix=max(end - begin for _, _, begin, end, _ in scaled),
        suffix=0,
    )


def of_contexts(
    cascade: PrefixCascade, contexts: np.ndarray[Any, np.dtype[Any]], device: torch.device | None = None
) -> PrefixCascade:
    """The same with the `suffix` of sequences that have so many tokens [B], on a device."""
    parts = (cascade.members, cascade.tiles, cascade.start, cascade.levels)
    members, tiles, start, levels = parts if device is None else (part.to(device) for part in parts)
    suffix = int((contexts - cascade.start.numpy()).max())
    return PrefixCascade(members, tiles, start, levels, cascade.width, cascade.depth, cascade.prefix, suffix)


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
