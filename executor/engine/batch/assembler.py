"""Chunks laid out on the host for the attention kernels: decoding sequences first, all numbers in one array.

`GraphAssembler` rounds sizes up, so that few captured graphs serve all decode steps, and finds the prefixes that
sequences share. `DirectAssembler` does neither: its kernels read each sequence by itself, and no graph is captured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from qpdsl.executor.engine.batch.staging import Numbers
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.kernels.data.paged_batch import Cascade
from qpdsl.executor.kernels.data.rounding import next_power_of_two
from qpdsl.executor.kernels.data.shared_prefixes import plan
from qpdsl.executor.kernels.packed import Sizes, pack

# Rows that a captured step is padded to: these, then multiples of `_ROW_STEP`.
_FEW_ROWS = (1, 2, 4, 8, 16)
_ROW_STEP = 8
# Page tables of a captured step are a power of two wide, and at least this.
_LEAST_WIDTH = 8


@dataclass(frozen=True, slots=True)
class PackedStep:
    """One step on the host: `numbers` int32 as `sizes` lays them out.

    `readers`: chunks of which rows are read, and how many of each. Where `sizes.wanted` is 0, they are the first rows.
    """

    sizes: Sizes
    numbers: Numbers
    readers: list[tuple[Chunk, int]]


class GraphAssembler:
    """Lays out one model's steps, and keeps page tables and shared prefixes from one step to the next.

    `scratch`: a page that is never read. With `rows`, every step is padded to so many, and no prefix is shared.
    """

    def __init__(self, page_size: int, scratch: int, rows: int | None = None) -> None:
        self._page_size = page_size
        self._slot = scratch * page_size
        self._rows = rows
        self._tables = _PageTables()
        self._prefixes = _SharedPrefixes(page_size)

    def decode(self, chunks: list[Chunk]) -> PackedStep:
        """A step of chunks of one token each, all of them read. Its sizes are rounded up."""
        count = len(chunks)
        rows = self._rows or bucket(count)
        sequences = [chunk.sequence for chunk in chunks]
        tokens, positions, slots = _next_tokens(sequences, self._page_size)
        depth = max(positions) // self._page_size + 1
        width = next_power_of_two(max(depth, _LEAST_WIDTH))
        context = np.asarray(positions) + 1
        sizes = Sizes(rows, rows, width, 0, rows, width * self._page_size, 1)
        parts: list[Numbers | list[int]] = [
            tokens,
            positions,
            slots + [self._slot] * (rows - count),
            context,
            np.arange(rows + 1),
            self._tables.of(sequences, width),
            [],
        ]
        cascade = None if self._rows else self._prefixes.of(sequences, context)
        if cascade is not None:
            sizes, shared = _shared(_rounded(cascade, rows, sizes.longest), sizes)
            parts += shared
        return PackedStep(sizes, pack(sizes, parts), [(chunk, 1) for chunk in chunks])

    def mixed(self, chunks: list[Chunk]) -> PackedStep:
        """A step of any chunks."""
        ordered = sorted(chunks, key=lambda chunk: chunk.rows > 1)
        decoding = [chunk.sequence for chunk in ordered if chunk.rows == 1]
        tokens, positions, slots, context, start, read_rows, readers = _rows_of(ordered, self._page_size)
        if self._rows is not None and len(tokens) < self._rows:
            # The padding is a sequence without a context.
            slots += [self._slot] * (self._rows - len(tokens))
            context.append(0)
            start.append(self._rows)
        width = next_power_of_two(max(_LEAST_WIDTH, -(-max(context) // self._page_size)))
        sequences = [chunk.sequence for chunk in ordered]
        longest_query = max(after - before for before, after in pairwise(start))
        decodes = len(decoding)
        sizes = Sizes(len(slots), len(context), width, len(read_rows), decodes, max(context), longest_query)
        parts: list[Numbers | list[int]] = [
            tokens, positions, slots, context, start, self._tables.of(sequences, width), read_rows
        ]  # fmt: skip
        cascade = (
            self._prefixes.of(decoding, np.asarray(context[:decodes])) if decoding and self._rows is None else None
        )
        if cascade is not None:
            sizes, shared = _shared(cascade, sizes)
            parts += shared
        return PackedStep(sizes, pack(sizes, parts), readers)


class DirectAssembler:
    """Lays out one model's steps for kernels that read each sequence by itself, with nothing rounded up.

    `scratch`: a page that is never read.
    """

    def __init__(self, page_size: int, scratch: int) -> None:
        self._page_size = page_size
        self._slot = scratch * page_size
        self._tables = _PageTables()

    def step(self, chunks: list[Chunk], least: int) -> PackedStep:
        """A step of any chunks, padded to `least` rows. Padding rows belong to no sequence."""
        ordered = sorted(chunks, key=lambda chunk: chunk.rows > 1)
        tokens, positions, slots, context, start, read_rows, readers = _rows_of(ordered, self._page_size)
        longest = max(context)
        width = -(-longest // (self._page_size * _LEAST_WIDTH)) * _LEAST_WIDTH
        slots += [self._slot] * (least - len(slots))
        if read_rows == [*range(len(read_rows))]:
            read_rows = []
        decodes = sum(chunk.rows == 1 for chunk in ordered)
        longest_query = max(chunk.rows for chunk in ordered)
        sizes = Sizes(len(slots), len(ordered), width, len(read_rows), decodes, longest, longest_query)
        tables = self._tables.of([chunk.sequence for chunk in ordered], width)
        return PackedStep(sizes, pack(sizes, [tokens, positions, slots, context, start, tables, read_rows]), readers)


def bucket(rows: int) -> int:
    """The number of rows that a captured step with `rows` rows is padded to: 1, 2, 4, 8, 16, 24, 32 and so on."""
    return next((size for size in _FEW_ROWS if size >= rows), -(-rows // _ROW_STEP) * _ROW_STEP)


def _next_tokens(sequences: list[Sequence], page_size: int) -> tuple[list[int], list[int], list[int]]:
    """Token, position and slot of the next token of each sequence."""
    positions = [sequence.computed for sequence in sequences]
    pairs = list(zip(sequences, positions, strict=True))
    tokens = [sequence.tokens[i] for sequence, i in pairs]
    return tokens, positions, [sequence.pages[i // page_size] * page_size + i % page_size for sequence, i in pairs]


class _Rows(NamedTuple):
    """Chunks one after the other: what each row is, each chunk's context and first row, and the rows to read."""

    tokens: list[int]
    positions: list[int]
    slots: list[int]
    context: list[int]
    start: list[int]
    read_rows: list[int]
    readers: list[tuple[Chunk, int]]


def _rows_of(ordered: list[Chunk], page_size: int) -> _Rows:
    """The rows of chunks; those of one token must come first."""
    decoding = [chunk.sequence for chunk in ordered if chunk.rows == 1]
    tokens, positions, slots = _next_tokens(decoding, page_size)
    context, start = [position + 1 for position in positions], [*range(len(decoding) + 1)]
    read_rows: list[int] = []
    readers: list[tuple[Chunk, int]] = []
    for row, chunk in enumerate(ordered):
        sequence, begin = chunk.sequence, chunk.sequence.computed
        if chunk.rows == 1:
            first = row
        else:
            first = len(tokens)
            end = begin + chunk.rows
            tokens += chunk.tokens
            positions += chunk.positions
            pages = sequence.pages
            slots += [pages[i // page_size] * page_size + i % page_size for i in range(begin, end)]
            context.append(end)
            start.append(len(tokens))
        read = chunk.read_rows
        if read:
            read_rows += [first + row for row in read]
            readers.append((chunk, len(read)))
    return _Rows(tokens, positions, slots, context, start, read_rows, readers)


class _PageTables:
    """Page tables int32 [B, width], kept from step to step; only rows that changed are written."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []
        self._table = np.zeros((0, _LEAST_WIDTH), dtype=np.int32)

    def of(self, sequences: list[Sequence], width: int) -> Numbers:
        if width != self._table.shape[1] or len(sequences) > len(self._table):
            rows = max(len(sequences), len(self._table))
            self._table, self._rows = np.zeros((rows, width), dtype=np.int32), []
        missing = len(sequences) - len(self._rows)
        self._rows += [[] for _ in range(missing)]
        for row, sequence in enumerate(sequences):
            pages = sequence.pages
            if pages != self._rows[row]:
                self._rows[row] = pages[:]
                # A sequence may hold a page for a later token, past the widest context of the step.
                entries = pages[:width]
                self._table[row, : len(entries)] = entries
        return self._table[: len(sequences)]


class _SharedPrefixes:
    """The prefixes that decoding sequences share, searched anew only when a sequence joins or leaves.

    A sequence that comes back has the same tokens, so it shares the same prefix, in whatever pages.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._sequences: list[Sequence] = []
        self._cascade: Cascade | None = None

    def of(self, sequences: list[Sequence], context: Numbers) -> Cascade | None:
        """On the host. `context` [B]: the tokens of each sequence, with the new one."""
        if sequences != self._sequences:
            tables = [sequence.pages for sequence in sequences]
            self._cascade = plan(tables, context.tolist(), self._page_size, torch.device("cpu"))
            self._sequences = sequences
        if self._cascade is None:
            return None
        suffix = int((context - self._cascade.start.numpy()).max())
        return replace(self._cascade, suffix=suffix)


def _rounded(cascade: Cascade, rows: int, longest: int) -> Cascade:
    """The same with its bounds rounded up, and tiles without sequences added."""
    tiles = cascade.tiles
    padding = torch.zeros(next_power_of_two(len(tiles)) - len(tiles), 5, dtype=tiles.dtype)
    return replace(
        cascade,
        tiles=torch.cat((tiles, padding)),
        width=min(rows, next_power_of_two(cascade.width)),
        prefix=min(longest, next_power_of_two(cascade.prefix)),
        suffix=min(longest, next_power_of_two(cascade.suffix)),
    )


def _shared(cascade: Cascade, sizes: Sizes) -> tuple[Sizes, list[Numbers | list[int]]]:
    """The sizes with those of the cascade, and its parts. It may have fewer sequences than the step."""
    bounds = {"members": cascade.width, "depth": cascade.depth, "prefix": cascade.prefix, "suffix": cascade.suffix}
    parts = (cascade.members, cascade.tiles, cascade.start, cascade.levels)
    return sizes._replace(tiles=len(cascade.tiles), **bounds), [part.numpy() for part in parts]
