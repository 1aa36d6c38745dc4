"""From scheduled chunks to what the attention kernels read: decoding sequences first, all in one packed array.

MERGED: One forward as the attention kernels see it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from qpdsl.executor.engine.batch.grouped import wanted_rows
from qpdsl.executor.engine.batch.staging import Numbers
from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.kernels import packed, paged_attention
from qpdsl.executor.kernels.data.paged_batch import Cascade, PagedBatch, Scoring, power_of_two
from qpdsl.executor.kernels.data.shared_prefixes import plan
from qpdsl.executor.kernels.packed import Sizes, pack

_SMALL = (1, 2, 4, 8, 16)
_STEP = 8


def bucket(rows: int) -> int:
    """The number of rows that a captured step with `rows` rows is padded to: 1, 2, 4, 8, 16, 24, 32 and so on."""
    return next((size for size in _SMALL if size >= rows), -(-rows // _STEP) * _STEP)


# Page tables of a captured step are a power of two wide, and this at least.
_LEAST_WIDTH = 8


@dataclass(frozen=True, slots=True)
class Assembled:
    """One step on the host: `numbers` int32 as `sizes` lays them out; `readers`: chunks with rows to read, how many.

    The rows to read are the first ones where `sizes.wanted` is 0.
    """

    sizes: Sizes
    numbers: Numbers
    readers: list[tuple[Chunk, int]]


class Assembler:
    """Lays out one model's steps; from one to the next it keeps the page tables and the shared prefixes.

    `scratch`: a page nobody reads. `rows`: every step is padded to so many, None for as many as it has.
    """

    def __init__(self, page_size: int, scratch: int, rows: int | None = None) -> None:
        self._page_size = page_size
        self._slot = scratch * page_size
        self._rows = rows
        self._tables = _PageTables()
        self._prefixes = _Prefixes(page_size)

    def decode(self, chunks: list[Chunk]) -> Assembled:
        """A step of chunks of one token each, all of them read; sizes are rounded up, so that few graphs serve all."""
        count = len(chunks)
        rows = self._rows or bucket(count)
        sequences = [chunk.sequence for chunk in chunks]
        tokens, positions, slots = _lone(sequences, self._page_size)
        depth = max(positions) // self._page_size + 1
        width = power_of_two(max(depth, _LEAST_WIDTH))
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
        return Assembled(sizes, pack(sizes, parts), [(chunk, 1) for chunk in chunks])

    def mixed(self, chunks: list[Chunk]) -> Assembled:
        """A step of any chunks."""
        ordered = sorted(chunks, key=lambda chunk: chunk.count > 1)
        lone = [chunk.sequence for chunk in ordered if chunk.count == 1]
        tokens, positions, slots, context, start, wanted, readers = _laid(ordered, self._page_size)
        if self._rows is not None and len(tokens) < self._rows:
            # What is missing is a sequence without a context.
            slots += [self._slot] * (self._rows - len(tokens))
            context.append(0)
            start.append(self._rows)
        width = power_of_two(max(_LEAST_WIDTH, -(-max(context) // self._page_size)))
        sequences = [chunk.sequence for chunk in ordered]
        longest_query = max(after - before for before, after in pairwise(start))
        decodes = len(lone)
        sizes = Sizes(len(slots), len(context), width, len(wanted), decodes, max(context), longest_query)
        parts: list[Numbers | list[int]] = [
            tokens, positions, slots, context, start, self._tables.of(sequences, width), wanted
        ]  # fmt: skip
        cascade = self._prefixes.of(lone, np.asarray(context[:decodes])) if lone and self._rows is None else None
        if cascade is not None:
            sizes, shared = _shared(cascade, sizes)
            parts += shared
        return Assembled(sizes, pack(sizes, parts), readers)


class PlainAssembler:
    """Lays out steps for kernels that read each sequence by itself, and of which no graphs are captured.

    Nothing is rounded, and no shared prefixes are looked for. `scratch`: a page nobody reads.
    """

    def __init__(self, page_size: int, scratch: int) -> None:
        self._page_size = page_size
        self._slot = scratch * page_size
        self._tables = _PageTables()

    def step(self, chunks: list[Chunk], least: int) -> Assembled:
        """A step of any chunks, padded to `least` rows that belong to no sequence."""
        ordered = sorted(chunks, key=lambda chunk: chunk.count > 1)
        tokens, positions, slots, context, start, wanted, readers = _laid(ordered, self._page_size)
        longest = max(context)
        width = -(-longest // (self._page_size * _LEAST_WIDTH)) * _LEAST_WIDTH
        slots += [self._slot] * (least - len(slots))
        if wanted == [*range(len(wanted))]:
            wanted = []
        decodes = sum(chunk.count == 1 for chunk in ordered)
        longest_query = max(chunk.count for chunk in ordered)
        sizes = Sizes(len(slots), len(ordered), width, len(wanted), decodes, longest, longest_query)
        tables = self._tables.of([chunk.sequence for chunk in ordered], width)
        return Assembled(sizes, pack(sizes, [tokens, positions, slots, context, start, tables, wanted]), readers)


def _lone(sequences: list[Sequence], page_size: int) -> tuple[list[int], list[int], list[int]]:
    """Token, position and slot of the next token of each."""
    positions = [sequence.computed for sequence in sequences]
    pairs = list(zip(sequences, positions, strict=True))
    tokens = [sequence.tokens[at] for sequence, at in pairs]
    return tokens, positions, [sequence.pages[at // page_size] * page_size + at % page_size for sequence, at in pairs]


class _Laid(NamedTuple):
    """Chunks one after the other: their rows, their contexts and where each begins, and the rows to read."""

    tokens: list[int]
    positions: list[int]
    slots: list[int]
    context: list[int]
    start: list[int]
    wanted: list[int]
    readers: list[tuple[Chunk, int]]


def _laid(ordered: list[Chunk], page_size: int) -> _Laid:
    """Of chunks of which those of one token come first."""
    lone = [chunk.sequence for chunk in ordered if chunk.count == 1]
    tokens, positions, slots = _lone(lone, page_size)
    context, start = [position + 1 for position in positions], [*range(len(lone) + 1)]
    wanted: list[int] = []
    readers: list[tuple[Chunk, int]] = []
    for row, chunk in enumerate(ordered):
        sequence, begin = chunk.sequence, chunk.sequence.computed
        if chunk.count == 1:
            first = row
        else:
            first = len(tokens)
            end = begin + chunk.count
            tokens += sequence.tokens[begin:end]
            positions += range(begin, end)
            pages = sequence.pages
            slots += [pages[at // page_size] * page_size + at % page_size for at in range(begin, end)]
            context.append(end)
            start.append(len(tokens))
        found = wanted_rows(chunk)
        if found:
            wanted += [first + at - begin for at in found]
            readers.append((chunk, len(found)))
    return _Laid(tokens, positions, slots, context, start, wanted, readers)


class _PageTables:
    """Page tables int32 [B, width], of which only the lines that changed are written anew."""

    def __init__(self) -> None:
        self._lines: list[list[int]] = []
        self._table = np.zeros((0, _LEAST_WIDTH), dtype=np.int32)

    def of(self, sequences: list[Sequence], width: int) -> Numbers:
        if width != self._table.shape[1] or len(sequences) > len(self._table):
            rows = max(len(sequences), len(self._table))
            self._table, self._lines = np.zeros((rows, width), dtype=np.int32), []
        missing = len(sequences) - len(self._lines)
        self._lines += [[] for _ in range(missing)]
        for row, sequence in enumerate(sequences):
            pages = sequence.pages
            if pages != self._lines[row]:
                self._lines[row] = pages[:]
                # A sequence may hold a page for a token to come, past the widest context of the step.
                line = pages[:width]
                self._table[row, : len(line)] = line
        return self._table[: len(sequences)]


class _Prefixes:
    """The prefixes that decoding sequences share, found anew only when one joins or leaves.

    A sequence that comes back keeps its tokens, so its prefix stays the others' prefix, in whatever pages.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._sequences: list[Sequence] = []
        self._cascade: Cascade | None = None

    def of(self, sequences: list[Sequence], context: Numbers) -> Cascade | None:
        """On the host; `context` [B]: tokens of each with the new one."""
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
    padding = torch.zeros(power_of_two(len(tiles)) - len(tiles), 5, dtype=tiles.dtype)
    return replace(
        cascade,
        tiles=torch.cat((tiles, padding)),
        width=min(rows, power_of_two(cascade.width)),
        prefix=min(longest, power_of_two(cascade.prefix)),
        suffix=min(longest, power_of_two(cascade.suffix)),
    )


def _shared(cascade: Cascade, sizes: Sizes) -> tuple[Sizes, list[Numbers | list[int]]]:
    """The sizes with the cascade's, and its parts. Its arrays may be of fewer sequences than the step's."""
    bounds = {"members": cascade.width, "depth": cascade.depth, "prefix": cascade.prefix, "suffix": cascade.suffix}
    parts = (cascade.members, cascade.tiles, cascade.start, cascade.levels)
    return sizes._replace(tiles=len(cascade.tiles), **bounds), [part.numpy() for part in parts]


@dataclass(frozen=True, slots=True)
class KernelBatch:
    """`numbers` int32 on the device holds the step as `sizes` lays it out; the rest are views of it.

    `wanted` int32 [W]: the rows whose hidden state is read, None for all. `host_sizes` int64 on the host, `sizes` for
    compiled layers. `deterministic`: a row's bits must not depend on the others.
    """

    numbers: torch.Tensor
    sizes: Sizes
    host_sizes: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor
    wanted: torch.Tensor | None
    paged: PagedBatch
    deterministic: bool = False

    @classmethod
    def of(cls, numbers: torch.Tensor, sizes: Sizes, deterministic: bool = False) -> KernelBatch:
        tokens, positions, wanted, batch = packed.unpack(numbers, sizes)
        rows = wanted if sizes.wanted else None
        return cls(numbers, sizes, torch.tensor(sizes), tokens, positions, rows, batch, deterministic)

    def attend(
        self,
        cache: KVCache,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: int,
        scoring: Scoring,
    ) -> torch.Tensor:
        """A layer's attention of `query` [T, H, D]; `key` and `value` [T, KV, D] are stored before it."""
        if torch.compiler.is_compiling():
            return packed.attend(
                query, key, value, cache.rows, self.numbers, self.host_sizes, layer, scoring, self.deterministic
            )
        return paged_attention.attend(query, key, value, cache.rows, self.paged, layer, scoring, self.deterministic)
