"""The chunks of a step, laid out for the attention kernels: decoding sequences first, all numbers in one array.

An assembler writes the array on the host, and a `KernelBatch` is its views on the device. `GraphAssembler` rounds sizes
up, so that few captured graphs serve nearly all steps, and finds the prefixes that sequences share. `DirectAssembler`
does neither: its kernels read each sequence by itself, and no graph is captured. Page tables and shared prefixes are
kept from one step to the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch

from qpdsl.executor.engine.batch.staging import Numbers
from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence, TreeRow, are_draws, in_step
from qpdsl.executor.kernels import packed, paged_attention
from qpdsl.executor.kernels.data.paged_batch import (
    NOWHERE,
    Heads,
    PagedBatch,
    PrefixCascade,
    Scoring,
    next_power_of_two,
)
from qpdsl.executor.kernels.data.shared_prefixes import DEEPEST, of_contexts, plan_pages
from qpdsl.executor.kernels.data.states import StateSegment
from qpdsl.executor.kernels.packed import Sizes, pack

# Rows that a captured decode step is padded to: these, then multiples of `_ROW_STEP`.
_FEW_ROWS = (1, 2, 4, 8, 16)
_ROW_STEP = 8
# Rows of a captured step with chunks: of the sequences that decode, and of the chunks. With more than the largest of
# the device has enough to do to hide the launches (vLLM captures steps of up to as many tokens).
MAX_ROWS = 512
_DECODES = (0, 8, 16, 32, 48, 64, 96, 128, 192, 256)
_CHUNKS = (16, 32, 64, 96, 128, 192, 256, 384, MAX_ROWS)
# Where all steps have the same rows: how many numbers of sequences may decode beside chunks.
_FIXED_DECODES = 8
# Chunks of at most so many tokens are read by smaller tiles.
_SHORT = 16
# A captured cascade has one of two widths, this or that of the batch, and at least so many tiles.
_NARROW, _FEW_TILES = 16, 4
# Page tables are as many pages wide as are read, rounded up to a power of two and at least to this. Those of captured
# steps are as wide as the widest until then, of so many pages times a power of 4: each width has graphs of its own.
MIN_WIDTH, _CAPTURED_WIDTH = 8, 128


@dataclass(frozen=True, slots=True)
class KernelBatch:
    """`numbers` int32 on the device holds the step as `sizes` lays it out; the rest are views of it.

    `read_rows` int32 [W]: the rows whose hidden state is read, None for all. `deterministic`: a row's bits must not
    depend on the others. `segments`: where layers keep states, in the order of their rows.
    """

    numbers: torch.Tensor
    sizes: Sizes
    tokens: torch.Tensor
    positions: torch.Tensor
    read_rows: torch.Tensor | None
    paged: PagedBatch
    deterministic: bool = False
    segments: tuple[StateSegment, ...] = ()

    @classmethod
    def of(
        cls,
        numbers: torch.Tensor,
        sizes: Sizes,
        deterministic: bool = False,
        segments: tuple[StateSegment, ...] = (),
    ) -> KernelBatch:
        """The views of `numbers`, laid out as `sizes` says."""
        tokens, positions, rows, batch = packed.unpack(numbers, sizes)
        read_rows = rows if sizes.wanted else None
        return cls(numbers, sizes, tokens, positions, read_rows, batch, deterministic, segments)

    def of_rows(self, rows: torch.Tensor) -> KernelBatch:
        """The step of some rows int64 [W] alone, whose tokens are the last of a sequence each."""
        paged, count = self.paged, len(rows)
        sequence = torch.searchsorted(paged.query_start, rows, right=True) - 1
        behind = paged.query_start[sequence + 1] - 1 - rows
        context = (paged.context[sequence] - behind).int()
        start = torch.arange(count + 1, dtype=torch.int32)
        own = PagedBatch(paged.pages[sequence], context, paged.slots[rows], start, count, paged.longest)
        return replace(self, tokens=self.tokens[rows], positions=self.positions[rows], read_rows=None, paged=own)

    def attend(self, cache: KVCache, heads: Heads, layer: int, scoring: Scoring) -> torch.Tensor:
        """A layer's attention [T, H, V]; keys and values are stored before it."""
        rows, number = cache.of_layer[layer]
        return paged_attention.attend(heads, rows, self.paged, number, scoring, self.deterministic)


@dataclass(frozen=True, slots=True)
class PackedStep:
    """One step on the host: `numbers` int32 as `sizes` lays them out.

    `readers`: chunks of which rows are read, and how many of each. Where `sizes.wanted` is 0, they are the first rows.
    `segments`: see `KernelBatch`; compiled attention alone has any. `fed` int64 [n] on the device: the tokens of the
    first rows, which the host does not have; None where it has all.
    """

    sizes: Sizes
    numbers: Numbers
    readers: list[tuple[Chunk, int]]
    segments: tuple[StateSegment, ...] = ()
    fed: torch.Tensor | None = None


class _Shape(NamedTuple):
    """The sizes of a step: see `Sizes`. Of `decodes` and `sequences`, the last ones may be empty."""

    tokens: int
    decodes: int
    sequences: int
    wanted: int
    longest_query: int


class GraphAssembler:
    """Lays out one model's steps, and keeps page tables and shared prefixes from one step to the next.

    `scratch`: a page that is never read. With `rows`, every step is padded to so many, and no prefix is shared; else
    prefixes are where that saves more than `worth` tokens of keys and values.

    A graph serves steps of equal sizes. There can be: of decode steps, 5 and one for each 8 sequences; of steps with
    chunks, of up to `MAX_ROWS` rows, 79 pairs of rows that decode and rows of chunks, each with three kinds of chunks
    (short, many, few) and two numbers of rows that are read. With a cascade each of them has coarse bounds besides:
    tiles to powers of four, two widths, two depths. A search meets some dozens of all these. With `rows` there are
    decode steps, eight by how many decode beside chunks, and full ones. All of them are captured anew where a text is
    longer than all before, up to four times as long as the first ones may be.
    """

    def __init__(self, page_size: int, scratch: int, rows: int | None = None, worth: int = 0) -> None:
        self._page_size = page_size
        self._slot = scratch * page_size
        self._rows = rows
        self._tables = PageTables()
        self._prefixes = SharedPrefixes(page_size, worth)
        self._captured_width = _CAPTURED_WIDTH

    def empty(self, decodes: int, chunks: int = 0, longest_query: int = 1) -> PackedStep:
        """A step without sequences, of the sizes of one in which so many decode beside chunks of so many tokens."""
        shape = _Shape(decodes + chunks, decodes, decodes, 0, 1)
        if chunks:
            sequences = decodes + chunks // (2 if longest_query <= _SHORT else 8)
            shape = _Shape(decodes + chunks, decodes, sequences, sequences, longest_query)
        return self._laid_out(StepRows([], [], [], [], [], [0], 0, {}, 0, [], []), shape, True)

    def decode(self, chunks: list[Chunk]) -> PackedStep:
        """A step of chunks of one token each, all of them read. Its sizes are rounded up."""
        count = self._rows or bucket(len(chunks))
        return self._laid_out(rows_of(chunks, self._page_size), _Shape(count, count, count, 0, 1), True)

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
        width = self._width(rows.reach, is_rounded)
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
            [row if row < decodes else row + gap for row in rows.read_rows] if shape.wanted else [],
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

    def _width(self, reach: int, is_rounded: bool) -> int:
        """How many pages a page table has, where all that is read lies in places below `reach`."""
        pages = -(-reach // self._page_size)
        if not is_rounded:
            return next_power_of_two(max(MIN_WIDTH, pages))
        while self._captured_width < pages:
            self._captured_width *= 4
        return self._captured_width


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
        width = -(-rows.reach // (self._page_size * MIN_WIDTH)) * MIN_WIDTH
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
        return PackedStep(sizes, pack(sizes, parts), rows.readers, _segments(chunks))


def bucket(rows: int) -> int:
    """The number of rows that a captured step with `rows` rows is padded to: 1, 2, 4, 8, 16, 24, 32 and so on."""
    return next((size for size in _FEW_ROWS if size >= rows), -(-rows // _ROW_STEP) * _ROW_STEP)


def _rounded_shape(rows: StepRows) -> _Shape | None:
    """The shape of a captured step that holds these rows; None where it would have more than `MAX_ROWS`."""
    decodes = _least(_DECODES, rows.decodes)
    chunks = _least(_CHUNKS, len(rows.slots) - rows.decodes)
    if decodes is None or chunks is None or decodes + chunks > MAX_ROWS:
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


def _rounded(cascade: PrefixCascade, rows: int, longest: int) -> PrefixCascade:
    """The same with its bounds rounded up to few different ones, and tiles without sequences added."""
    tiles = cascade.tiles
    padding = torch.zeros(max(_FEW_TILES, _power_of_four(len(tiles))) - len(tiles), 5, dtype=tiles.dtype)
    return replace(
        cascade,
        tiles=torch.cat((tiles, padding)),
        width=min(rows, _NARROW if cascade.width <= _NARROW else rows),
        depth=1 if cascade.depth == 1 else DEEPEST,
        prefix=longest,
        suffix=longest,
    )


def _power_of_four(count: int) -> int:
    """The smallest power of four that is no smaller than `count`."""
    return 1 << 2 * -(-max(count - 1, 0).bit_length() // 2)


def _shared(cascade: PrefixCascade, sizes: Sizes) -> tuple[Sizes, list[Numbers | list[int]]]:
    """The sizes with those of the cascade, and its parts. It may have fewer sequences than the step."""
    bounds = {"members": cascade.width, "depth": cascade.depth, "prefix": cascade.prefix, "suffix": cascade.suffix}
    parts = (cascade.members, cascade.tiles, cascade.start, cascade.levels)
    return sizes._replace(tiles=len(cascade.tiles), **bounds), [part.numpy() for part in parts]


class PageTables:
    """Page tables int32 [B, width], kept from step to step; only rows that changed are written."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []
        self._table = np.zeros((0, MIN_WIDTH), dtype=np.int32)

    def of(self, sequences: Listed[Sequence | None], width: int) -> Numbers:
        """Those of sequences, one after the other. Of None any row will do: nobody reads it."""
        if width != self._table.shape[1] or len(sequences) > len(self._table):
            rows = max(len(sequences), len(self._table))
            self._table, self._rows = np.zeros((rows, width), dtype=np.int32), []
        missing = len(sequences) - len(self._rows)
        self._rows += [[] for _ in range(missing)]
        for row, sequence in enumerate(sequences):
            if sequence is None:
                continue
            pages = sequence.pages
            if pages != self._rows[row]:
                self._rows[row] = pages[:]
                # A sequence may hold a page for a later token, past the widest context of the step.
                entries = pages[:width]
                self._table[row, : len(entries)] = entries
        return self._table[: len(sequences)]


class SharedPrefixes:
    """The prefixes that decoding sequences share, searched anew only when a sequence joins or leaves.

    A sequence that comes back has the same tokens, so it shares the same prefix, in whatever pages, once it has
    computed that far. `worth`: see `plan_pages`.
    """

    def __init__(self, page_size: int, worth: int) -> None:
        self._page_size = page_size
        self._worth = worth
        self._sequences: list[Sequence] = []
        self._cascade: PrefixCascade | None = None

    def of(
        self,
        sequences: list[Sequence],
        tables: Numbers,
        context: Numbers,
        branches: Mapping[int, TreeRow] | None = None,
    ) -> PrefixCascade | None:
        """On the host. `tables` int32 [B, P] and `context` [B]: of each sequence, with its new token.

        `branches`: see `StepRows`.
        """
        if branches or sequences != self._sequences or self._is_cut(context):
            counts = (context - 1) // self._page_size
            for number, branch in (branches or {}).items():
                # Paths in a tree share what lies before it.
                counts[number] = min(counts[number], branch.start // self._page_size)
            self._cascade = plan_pages(tables, counts, self._page_size, worth=self._worth)
            self._sequences = [] if branches else sequences
        return None if self._cascade is None else of_contexts(self._cascade, context)

    def _is_cut(self, context: Numbers) -> bool:
        """Whether a sequence ends inside its shared range: it came back, and is computed anew a token at a time."""
        return self._cascade is not None and bool((context <= self._cascade.start.numpy()).any())


def in_rows(chunks: list[Chunk]) -> list[Chunk]:
    """Chunks without trees in the order in which their rows follow one another: those of one row come first."""
    return sorted(chunks, key=lambda chunk: chunk.straight > 1)


def _segments(chunks: list[Chunk]) -> tuple[StateSegment, ...]:
    """Those of chunks without trees, whose rows follow one another."""
    if not any(chunk.segments for chunk in chunks):
        return ()
    ordered = in_rows(chunks)
    return in_step(zip(ordered, accumulate([chunk.rows for chunk in ordered], initial=0), strict=False))


def first_tokens(chunks: list[Chunk], page_size: int) -> tuple[list[int], list[int], list[int]]:
    """Token, position and slot of the first token of each chunk."""
    positions = [chunk.start for chunk in chunks]
    pairs = list(zip([chunk.sequence for chunk in chunks], positions, strict=True))
    tokens = [sequence.tokens[i] for sequence, i in pairs]
    return tokens, positions, [sequence.pages[i // page_size] * page_size + i % page_size for sequence, i in pairs]


class StepRows(NamedTuple):
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
    branches: dict[int, TreeRow]
    reach: int
    read_rows: list[int]
    readers: list[tuple[Chunk, int]]


def rows_of(chunks: list[Chunk], page_size: int) -> StepRows:
    """The rows of chunks: those of one token, then tokens of trees, then the others."""
    if are_draws(chunks):
        sequences = [chunk.sequence for chunk in chunks]
        tokens, positions, slots = first_tokens(chunks, page_size)
        context, start = [position + 1 for position in positions], [*range(len(tokens) + 1)]
        readers = [(chunk, 1) for chunk in chunks]
        rows = (tokens, positions, slots, sequences, context, start)
        return StepRows(*rows, len(tokens), {}, max(context), start[:-1], readers)
    ordered = in_rows(chunks)
    single_ones = [chunk for chunk in ordered if chunk.straight == 1]
    sequences = [chunk.sequence for chunk in single_ones]
    tokens, positions, slots = first_tokens(single_ones, page_size)
    context = [position + 1 for position in positions]
    branches: dict[int, TreeRow] = {}
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
    return StepRows(tokens, positions, slots, sequences, context, start, decodes, branches, reach, read_rows, readers)


def with_paths(
    branches: dict[int, TreeRow], sizes: Sizes, is_rounded: bool = False
) -> tuple[Sizes, list[Numbers | list[int]]]:
    """The sizes with that of the paths in trees, and their parts."""
    width = max(len(branch.places) for branch in branches.values())
    if is_rounded:
        width = next_power_of_two(width)
    start = np.full(sizes.sequences, NOWHERE, dtype=np.int32)
    places = np.zeros((sizes.sequences, width), dtype=np.int32)
    for number, branch in branches.items():
        start[number] = branch.start
        places[number, : len(branch.places)] = branch.places
    return sizes._replace(path=width), [start, places]
