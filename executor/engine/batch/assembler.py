"""Chunks laid out on the host for the attention kernels: decoding sequences first, all numbers in one array.

`GraphAssembler` rounds sizes up, so that few captured graphs serve all decode steps, and finds the prefixes that
sequences share. `DirectAssembler` does neither: its kernels read each sequence by itself, and no graph is captured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from qpdsl.executor.engine.batch.staging import Numbers
from qpdsl.executor.engine.memory.sequence import Branch, Chunk, Sequence
from qpdsl.executor.kernels.data.paged_batch import NOWHERE, Cascade
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
        tokens, positions, slots = _first_tokens(chunks, self._page_size)
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
        rows = _rows_of(chunks, self._page_size)
        slots, context, start, decodes = rows.slots, rows.context, rows.start, rows.decodes
        if self._rows is not None and len(slots) < self._rows:
            # The padding is a sequence without a context.
            slots += [self._slot] * (self._rows - len(slots))
            context.append(0)
            start.append(self._rows)
        width = next_power_of_two(max(_LEAST_WIDTH, -(-rows.reach // self._page_size)))
        longest_query = max(after - before for before, after in pairwise(start))
        sizes = Sizes(len(slots), len(context), width, len(rows.read_rows), decodes, max(context), longest_query)
        parts: list[Numbers | list[int]] = [
            rows.tokens, rows.positions, slots, context, start, self._tables.of(rows.sequences, width), rows.read_rows
        ]  # fmt: skip
        if decodes and self._rows is None:
            cascade = self._prefixes.of(rows.sequences[:decodes], np.asarray(context[:decodes]), rows.branches)
            if cascade is not None:
                sizes, shared = _shared(cascade, sizes)
                parts += shared
        if rows.branches:
            sizes, paths = _with_paths(rows.branches, sizes)
            parts += paths
        return PackedStep(sizes, pack(sizes, parts), rows.readers)


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
        rows = _rows_of(chunks, self._page_size)
        slots, context, start, read_rows = rows.slots, rows.context, rows.start, rows.read_rows
        width = -(-rows.reach // (self._page_size * _LEAST_WIDTH)) * _LEAST_WIDTH
        slots += [self._slot] * (least - len(slots))
        if read_rows == [*range(len(read_rows))]:
            read_rows = []
        longest_query = 1 if rows.decodes == len(rows.context) else max(chunk.straight for chunk in chunks)
        sizes = Sizes(len(slots), len(context), width, len(read_rows), rows.decodes, max(context), longest_query)
        tables = self._tables.of(rows.sequences, width)
        parts: list[Numbers | list[int]] = [rows.tokens, rows.positions, slots, context, start, tables, read_rows]
        if rows.branches:
            sizes, paths = _with_paths(rows.branches, sizes)
            parts += paths
        return PackedStep(sizes, pack(sizes, parts), rows.readers)


def bucket(rows: int) -> int:
    """The number of rows that a captured step with `rows` rows is padded to: 1, 2, 4, 8, 16, 24, 32 and so on."""
    return next((size for size in _FEW_ROWS if size >= rows), -(-rows // _ROW_STEP) * _ROW_STEP)


def in_rows(chunks: list[Chunk]) -> list[Chunk]:
    """Chunks without trees in the order in which their rows follow one another: those of one row come first."""
    return sorted(chunks, key=lambda chunk: chunk.straight > 1)


def _first_tokens(chunks: list[Chunk], page_size: int) -> tuple[list[int], list[int], list[int]]:
    """Token, position and slot of the first token of each chunk."""
    positions = [chunk.start for chunk in chunks]
    pairs = list(zip([chunk.sequence for chunk in chunks], positions, strict=True))
    tokens = [sequence.tokens[i] for sequence, i in pairs]
    return tokens, positions, [sequence.pages[i // page_size] * page_size + i % page_size for sequence, i in pairs]


class _Rows(NamedTuple):
    """The rows of chunks, as sequences one after the other: first `decodes` of one row, then longer ones.

    tokens, positions, slots: of each row
    sequences, context, start: of each sequence: whose pages it reads, its context and its first row
    branches:  by number, the sequences that are a token of a tree each
    reach:     all that is read lies in places below it
    read_rows, readers: the rows to read, chunk by chunk, and how many of each
    """

    tokens: list[int]
    positions: list[int]
    slots: list[int]
    sequences: list[Sequence]
    context: list[int]
    start: list[int]
    decodes: int
    branches: dict[int, Branch]
    reach: int
    read_rows: list[int]
    readers: list[tuple[Chunk, int]]


def _rows_of(chunks: list[Chunk], page_size: int) -> _Rows:
    """The rows of chunks: those of one token, then tokens of trees, then the others."""
    if all(chunk.is_draw for chunk in chunks):
        sequences = [chunk.sequence for chunk in chunks]
        tokens, positions, slots = _first_tokens(chunks, page_size)
        context, start = [position + 1 for position in positions], [*range(len(tokens) + 1)]
        readers = [(chunk, 1) for chunk in chunks]
        rows = (tokens, positions, slots, sequences, context, start)
        return _Rows(*rows, len(tokens), {}, max(context), start[:-1], readers)
    ordered = in_rows(chunks)
    single_ones = [chunk for chunk in ordered if chunk.straight == 1]
    sequences = [chunk.sequence for chunk in single_ones]
    tokens, positions, slots = _first_tokens(single_ones, page_size)
    context = [position + 1 for position in positions]
    branches: dict[int, Branch] = {}
    first_branches: list[int] = []
    reach = 0
    for chunk in ordered:
        first_branches.append(len(tokens))
        if chunk.rows == chunk.straight:
            continue
        own, pages = chunk.tokens, chunk.sequence.pages
        for branch in chunk.branches:
            place = branch.places[-1]
            branches[len(tokens)] = branch
            tokens.append(own[branch.row])
            positions.append(branch.position)
            slots.append(pages[place // page_size] * page_size + place % page_size)
            sequences.append(chunk.sequence)
            context.append(branch.position + 1)
            reach = max(reach, place + 1)
    decodes = len(tokens)
    start = [*range(decodes + 1)]
    read_rows: list[int] = []
    readers = []
    single = 0
    for chunk, first_branch in zip(ordered, first_branches, strict=True):
        straight, begin = chunk.straight, chunk.start
        if straight == 1:
            first = single
            single += 1
        else:
            first = len(tokens)
        if straight > 1:
            end, pages = begin + straight, chunk.sequence.pages
            tokens += chunk.tokens[:straight]
            positions += range(begin, end)
            slots += [pages[i // page_size] * page_size + i % page_size for i in range(begin, end)]
            sequences.append(chunk.sequence)
            context.append(end)
            start.append(len(tokens))
        read = chunk.kept_rows
        if read:
            read_rows += [first + row if row < straight else first_branch + row - straight for row in read]
            readers.append((chunk, len(read)))
    reach = max(reach, max(context))
    return _Rows(tokens, positions, slots, sequences, context, start, decodes, branches, reach, read_rows, readers)


def _with_paths(branches: dict[int, Branch], sizes: Sizes) -> tuple[Sizes, list[Numbers | list[int]]]:
    """The sizes with that of the paths in trees, and their parts."""
    width = max(len(branch.places) for branch in branches.values())
    start = np.full(sizes.sequences, NOWHERE, dtype=np.int32)
    places = np.zeros((sizes.sequences, width), dtype=np.int32)
    for number, branch in branches.items():
        start[number] = branch.start
        places[number, : len(branch.places)] = branch.places
    return sizes._replace(path=width), [start, places]


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

    def of(
        self, sequences: list[Sequence], context: Numbers, branches: Mapping[int, Branch] | None = None
    ) -> Cascade | None:
        """On the host. `context` [B]: the tokens of each sequence, with the new one. `branches`: as in `_Rows`."""
        if branches or sequences != self._sequences:
            tables = [sequence.pages for sequence in sequences]
            for number, branch in (branches or {}).items():
                # Paths in a tree share what lies before it.
                tables[number] = tables[number][: branch.start // self._page_size]
            self._cascade = plan(tables, context.tolist(), self._page_size, torch.device("cpu"))
            self._sequences = [] if branches else sequences
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
