"""Chunks laid out on the host for the attention kernels: decoding sequences first, all numbers in one array.

`GraphAssembler` rounds sizes up, so that few captured graphs serve nearly all steps, and finds the prefixes that
sequences share. `DirectAssembler` does neither: its kernels read each sequence by itself, and no graph is captured.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from qpdsl.executor.engine.batch.page_tables import LEAST_WIDTH, PageTables, SharedPrefixes
from qpdsl.executor.engine.batch.staging import Numbers
from qpdsl.executor.engine.batch.step_rows import StepRows, first_tokens, rows_of, with_paths
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.kernels.data.paged_batch import Cascade
from qpdsl.executor.kernels.data.rounding import next_power_of_two
from qpdsl.executor.kernels.data.shared_prefixes import DEEPEST
from qpdsl.executor.kernels.packed import Sizes, pack

# Rows that a captured decode step is padded to: these, then multiples of `_ROW_STEP`.
_FEW_ROWS = (1, 2, 4, 8, 16)
_ROW_STEP = 8
# Rows of a captured step with chunks: of the sequences that decode, and of the chunks. With more than the largest of
# the device has enough to do to hide the launches (vLLM captures steps of up to as many tokens).
MOST_ROWS = 512
_DECODES = (0, 8, 16, 32, 48, 64, 96, 128, 192, 256)
_CHUNKS = (16, 32, 64, 96, 128, 192, 256, 384, MOST_ROWS)
# Where all steps have the same rows: how many numbers of sequences may decode beside chunks.
_FIXED_DECODES = 8
# Chunks of at most so many tokens are read by smaller tiles.
_SHORT = 16
# A captured cascade has one of two widths, this or that of the batch, and ranges of so many tokens times a power of 4.
_NARROW = 16
_LEAST_RANGE = 512


@dataclass(frozen=True, slots=True)
class PackedStep:
    """One step on the host: `numbers` int32 as `sizes` lays them out.

    `readers`: chunks of which rows are read, and how many of each. Where `sizes.wanted` is 0, they are the first rows.
    """

    sizes: Sizes
    numbers: Numbers
    readers: list[tuple[Chunk, int]]


class _Shape(NamedTuple):
    """The sizes of a step with chunks: see `Sizes`. Of `decodes` and `sequences`, the last ones may be empty."""

    tokens: int
    decodes: int
    sequences: int
    wanted: int
    longest_query: int


class GraphAssembler:
    """Lays out one model's steps, and keeps page tables and shared prefixes from one step to the next.

    `scratch`: a page that is never read. With `rows`, every step is padded to so many, and no prefix is shared; else
    prefixes are where that saves more than `worth` tokens of keys and values.

    A graph serves steps of equal sizes. For each width of page tables (a power of two) there can be: of decode steps, 5
    and one for each 8 sequences; of steps with chunks, of up to `MOST_ROWS` rows, 79 pairs of rows that decode and rows
    of chunks, each with three kinds of chunks (short, many, few) and two numbers of rows that are read. With a cascade
    each of them has coarse bounds besides: tiles and ranges to powers of four, two widths, two depths. A search meets
    some dozens of all these. With `rows` there are decode steps, eight by how many decode beside chunks, and full ones.
    """

    def __init__(self, page_size: int, scratch: int, rows: int | None = None, worth: int = 0) -> None:
        self._page_size = page_size
        self._slot = scratch * page_size
        self._rows = rows
        self._tables = PageTables()
        self._prefixes = SharedPrefixes(page_size, worth)

    def decode(self, chunks: list[Chunk]) -> PackedStep:
        """A step of chunks of one token each, all of them read. Its sizes are rounded up."""
        count = len(chunks)
        rows = self._rows or bucket(count)
        sequences = [chunk.sequence for chunk in chunks]
        tokens, positions, slots = first_tokens(chunks, self._page_size)
        width = self._width(max(positions) + 1)
        context = np.asarray(positions) + 1
        tables = self._tables.of(sequences, width)
        sizes = Sizes(rows, rows, width, 0, rows, width * self._page_size, 1)
        parts: list[Numbers | list[int]] = [
            tokens,
            positions,
            slots + [self._slot] * (rows - count),
            context,
            np.arange(rows + 1),
            tables,
            [],
        ]
        cascade = None if self._rows else self._prefixes.of(sequences, tables, context)
        if cascade is not None:
            sizes, shared = _shared(_rounded(cascade, rows, sizes.longest), sizes)
            parts += shared
        return PackedStep(sizes, pack(sizes, parts), [(chunk, 1) for chunk in chunks])

    def mixed(self, chunks: list[Chunk]) -> PackedStep:
        """A step of any chunks, with its own sizes unless those of all steps are fixed."""
        rows = rows_of(chunks, self._page_size)
        if self._rows is not None:
            return self._laid_out(rows, self._fixed(rows), True)
        longest_query = max(after - before for before, after in pairwise(rows.start))
        shape = _Shape(len(rows.slots), rows.decodes, len(rows.context), len(rows.read_rows), longest_query)
        return self._laid_out(rows, shape, False)

    def rounded(self, chunks: list[Chunk]) -> PackedStep | None:
        """A step of any chunks whose sizes are rounded up; None where it has too many rows to be captured."""
        rows = rows_of(chunks, self._page_size)
        shape = _rounded_shape(rows) if self._rows is None else self._fixed(rows)
        return None if shape is None else self._laid_out(rows, shape, True)

    def _fixed(self, rows: StepRows) -> _Shape:
        """The shape of a step with chunks where all steps have as many rows."""
        count = len(rows.slots)
        most = max(self._rows or 0, count)
        step = max(1, most // _FIXED_DECODES)
        decodes = -(-rows.decodes // step) * step
        # A full step has no row to spare.
        fits = decodes - rows.decodes <= most - count
        return _Shape(most, decodes if fits else rows.decodes, most, most, most)

    def _laid_out(self, rows: StepRows, shape: _Shape, is_rounded: bool) -> PackedStep:
        """The rows of a step in a shape that holds them; empty sequences follow those that decode, and the chunks."""
        decodes = rows.decodes
        gap = shape.decodes - decodes
        width = self._width(rows.reach)
        longest = width * self._page_size if is_rounded else max(rows.context)
        sizes = Sizes(shape.tokens, shape.sequences, width, shape.wanted, shape.decodes, longest, shape.longest_query)
        slots = _spread(rows.slots, decodes, gap, self._slot)
        sequences: list[Sequence | None] = [*rows.sequences[:decodes], *[None] * gap, *rows.sequences[decodes:]]
        tables = self._tables.of(sequences, width)
        parts: list[Numbers | list[int]] = [
            _spread(rows.tokens, decodes, gap, 0),
            _spread(rows.positions, decodes, gap, 0),
            slots + [self._slot] * (shape.tokens - len(slots)),
            _spread(rows.context, decodes, gap, 0),
            _starts(rows.start, decodes, gap, shape),
            tables,
            [row if row < decodes else row + gap for row in rows.read_rows],
        ]
        if decodes and self._rows is None:
            decoding, context = rows.sequences[:decodes], np.asarray(rows.context[:decodes])
            cascade = self._prefixes.of(decoding, tables[:decodes], context, rows.branches)
            if cascade is not None:
                cascade = _rounded(cascade, shape.decodes, longest) if is_rounded else cascade
                sizes, shared = _shared(cascade, sizes)
                parts += shared
        if rows.branches:
            sizes, paths = with_paths(rows.branches, sizes, is_rounded)
            parts += paths
        return PackedStep(sizes, pack(sizes, parts), rows.readers)

    def _width(self, reach: int) -> int:
        """How many pages a page table has, where all that is read lies in places below `reach`."""
        return next_power_of_two(max(LEAST_WIDTH, -(-reach // self._page_size)))


class DirectAssembler:
    """Lays out one model's steps for kernels that read each sequence by itself, with nothing rounded up.

    `scratch`: a page that is never read.
    """

    def __init__(self, page_size: int, scratch: int) -> None:
        self._page_size = page_size
        self._slot = scratch * page_size
        self._tables = PageTables()

    def step(self, chunks: list[Chunk], least: int) -> PackedStep:
        """A step of any chunks, padded to `least` rows. Padding rows belong to no sequence."""
        rows = rows_of(chunks, self._page_size)
        slots, context, start, read_rows = rows.slots, rows.context, rows.start, rows.read_rows
        width = -(-rows.reach // (self._page_size * LEAST_WIDTH)) * LEAST_WIDTH
        slots += [self._slot] * (least - len(slots))
        if read_rows == [*range(len(read_rows))]:
            read_rows = []
        longest_query = 1 if rows.decodes == len(rows.context) else max(chunk.straight for chunk in chunks)
        sizes = Sizes(len(slots), len(context), width, len(read_rows), rows.decodes, max(context), longest_query)
        tables = self._tables.of(rows.sequences, width)
        parts: list[Numbers | list[int]] = [rows.tokens, rows.positions, slots, context, start, tables, read_rows]
        if rows.branches:
            sizes, paths = with_paths(rows.branches, sizes)
            parts += paths
        return PackedStep(sizes, pack(sizes, parts), rows.readers)


def bucket(rows: int) -> int:
    """The number of rows that a captured step with `rows` rows is padded to: 1, 2, 4, 8, 16, 24, 32 and so on."""
    return next((size for size in _FEW_ROWS if size >= rows), -(-rows // _ROW_STEP) * _ROW_STEP)


def _rounded_shape(rows: StepRows) -> _Shape | None:
    """The shape of a captured step that holds these rows; None where it would have more than `MOST_ROWS`."""
    decodes = _least(_DECODES, rows.decodes)
    chunks = _least(_CHUNKS, len(rows.slots) - rows.decodes)
    if decodes is None or chunks is None or decodes + chunks > MOST_ROWS:
        return None
    lengths = [after - before for before, after in pairwise(rows.start[rows.decodes :])]
    is_short = max(lengths, default=1) <= _SHORT
    # A chunk has two rows at least, so there is an empty sequence wherever there are rows to pad.
    is_crowded = is_short or len(lengths) >= chunks // 8
    sequences = decodes + chunks // (2 if is_crowded else 8)
    tokens = decodes + chunks
    wanted = sequences if len(rows.read_rows) <= sequences else tokens
    return _Shape(tokens, decodes, sequences, wanted, _SHORT if is_short else chunks)


def _least(sizes: Listed[int], count: int) -> int | None:
    """The least of ascending sizes that is no smaller than `count`; None where there is none."""
    place = bisect_left(sizes, count)
    return sizes[place] if place < len(sizes) else None


def _spread(values: list[int], decodes: int, gap: int, filling: int) -> list[int]:
    """The values with `gap` more behind the first `decodes`."""
    return [*values[:decodes], *[filling] * gap, *values[decodes:]] if gap else values


def _starts(start: list[int], decodes: int, gap: int, shape: _Shape) -> Numbers:
    """The first row of each sequence of a shape, and the end of the last.

    Rows of padding are shared out among the sequences that are empty otherwise.
    """
    starts = np.full(shape.sequences + 1, shape.tokens, dtype=np.int64)
    starts[: decodes + gap] = np.arange(decodes + gap)
    own = start[decodes:]
    used = decodes + gap + len(own) - 1
    starts[decodes + gap : used + 1] = np.asarray(own) + gap
    ends = starts[used] + shape.longest_query * np.arange(1, shape.sequences - used + 1)
    starts[used + 1 :] = np.minimum(ends, shape.tokens)
    return starts


def _rounded(cascade: Cascade, rows: int, longest: int) -> Cascade:
    """The same with its bounds rounded up to few different ones, and tiles without sequences added."""
    tiles = cascade.tiles
    padding = torch.zeros(_power_of_four(len(tiles)) - len(tiles), 5, dtype=tiles.dtype)
    return replace(
        cascade,
        tiles=torch.cat((tiles, padding)),
        width=min(rows, _NARROW if cascade.width <= _NARROW else rows),
        depth=1 if cascade.depth == 1 else DEEPEST,
        prefix=min(longest, _LEAST_RANGE * _power_of_four(-(-cascade.prefix // _LEAST_RANGE))),
        suffix=min(longest, _LEAST_RANGE * _power_of_four(-(-cascade.suffix // _LEAST_RANGE))),
    )


def _power_of_four(count: int) -> int:
    """The smallest power of four that is no smaller than `count`."""
    return 1 << 2 * -(-max(count - 1, 0).bit_length() // 2)


def _shared(cascade: Cascade, sizes: Sizes) -> tuple[Sizes, list[Numbers | list[int]]]:
    """The sizes with those of the cascade, and its parts. It may have fewer sequences than the step."""
    bounds = {"members": cascade.width, "depth": cascade.depth, "prefix": cascade.prefix, "suffix": cascade.suffix}
    parts = (cascade.members, cascade.tiles, cascade.start, cascade.levels)
    return sizes._replace(tiles=len(cascade.tiles), **bounds), [part.numpy() for part in parts]
