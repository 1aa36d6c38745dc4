"""Chunks laid out for attention in torch: groups of sequences that attend in one call each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from qpdsl.executor.engine.memory.kv_cache import KVCache, KVLayout
from qpdsl.executor.engine.memory.sequence import Branch, Chunk
from qpdsl.executor.kernels.data.paged_batch import Scoring
from qpdsl.executor.kernels.linear import PADDED_ROWS
from qpdsl.executor.kernels.plain.grouped_attention import AttentionGroup, paged_attention, write_kv

# A gather larger than this falls out of a core's own cache before attention has read it.
_MAX_GATHERED_BYTES = 1 << 19
_MAX_SCORES = 1 << 20


@dataclass(slots=True)
class GroupedBatch:
    """One forward over T rows. Padding rows write to the scratch page and are in no group.

    `tokens`, `positions` int64 [T]. `slots`: for each layer int64 [T], where each row's KV goes. `read_rows` int64 [W]:
    the rows whose hidden state is read, None for all of them, in the order of `readers`: chunks, and how many rows of
    each are read. All positions are below `longest`.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: tuple[torch.Tensor, ...]
    groups: list[AttentionGroup]
    read_rows: torch.Tensor | None
    readers: list[tuple[Chunk, int]]
    longest: int

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
        write_kv(cache.rows, torch.stack((key, value), dim=1), self.slots[layer])
        return paged_attention(query, cache.rows, layer, self.groups, scoring)


@dataclass(slots=True)
class _Span:
    """Rows that attend to one context, from `row` of the batch on, padded to `queries` rows over `pages` pages.

    They are the chunk's `count` rows from position `start` on, or one `branch` of it.
    """

    chunk: Chunk
    start: int
    count: int
    queries: int
    pages: int
    branch: Branch | None = None
    row: int = 0

    def rows(self) -> tuple[list[int], list[int], list[int]]:
        """Tokens, positions and places of its rows."""
        if self.branch is not None:
            return [self.chunk.tokens[self.branch.row]], [self.start], [self.branch.places[-1]]
        places = [*range(self.start, self.start + self.count)]
        return self.chunk.tokens[: self.count], places, places


def build(
    chunks: list[Chunk], layout: KVLayout, fold: int, scratch: int, device: str, least: int = PADDED_ROWS
) -> GroupedBatch:
    """Lays the chunks out one after the other, in `least` rows or more.

    `fold`: query heads per KV head; `scratch`: a page that is never read.
    """
    page_size = layout.page_size
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    read_rows: list[int] = []
    readers: list[tuple[Chunk, int]] = []
    # In the order in which they are grouped, so that a group's rows are neighbours.
    spans = sorted(_spans(chunks, page_size, fold), key=lambda span: (span.queries, span.pages))
    first_rows: dict[int, dict[int, int]] = {}
    for span in spans:
        chunk, span.row = span.chunk, len(tokens)
        first_rows.setdefault(id(chunk), {})[0 if span.branch is None else span.branch.row] = span.row
        pages = chunk.sequence.pages
        if chunk.rows == 1 and span.branch is None:
            tokens.append(chunk.sequence.tokens[span.start])
            positions.append(span.start)
            slots.append(pages[span.pages - 1] * page_size + span.start % page_size)
        else:
            own_tokens, own_positions, places = span.rows()
            tokens.extend(own_tokens)
            positions.extend(own_positions)
            slots.extend([pages[place // page_size] * page_size + place % page_size for place in places])
    for chunk in {id(span.chunk): span.chunk for span in spans}.values():
        read, straight, row_of = chunk.kept_rows, chunk.straight, first_rows[id(chunk)]
        if read:
            read_rows.extend([row_of[0] + row if row < straight else row_of[row] for row in read])
            readers.append((chunk, len(read)))
    padding = max(0, least - len(tokens))
    tokens.extend([0] * padding)
    positions.extend([0] * padding)
    slots.extend([scratch * page_size] * padding)
    return GroupedBatch(
        torch.tensor(tokens, device=device),
        torch.tensor(positions, device=device),
        _by_layer(slots, page_size, layout.layers, device),
        [_group(members, layout, scratch, device) for members in _groups(spans, layout, fold)],
        torch.tensor(read_rows, dtype=torch.long, device=device) if read_rows != [*range(len(tokens))] else None,
        readers,
        max(positions) + 1,
    )


def _spans(chunks: list[Chunk], page_size: int, fold: int) -> list[_Span]:
    spans: list[_Span] = []
    for chunk in chunks:
        start, straight = chunk.sequence.computed, chunk.straight
        if straight:
            pages = -(-(start + straight) // page_size)
            spans.append(_Span(chunk, start, straight, _padded(straight, fold), pages))
        if straight < chunk.rows:
            pages = -(-(start + chunk.rows) // page_size)
            spans += [_Span(chunk, own.position, 1, _padded(1, fold), pages, own) for own in chunk.branches]
    return spans


def _by_layer(values: list[int], step: int, layers: int, device: str) -> tuple[torch.Tensor, ...]:
    """For each layer the values, larger by `step` than in the layer before."""
    table = np.array(values) + np.arange(0, layers * step, step)[:, None]
    return torch.from_numpy(table).to(device).unbind(0)


def _padded(count: int, fold: int) -> int:
    """Query rows that attention computes for `count`: 1, or a power of two.

    A single row would be a vector product, which sums in another order; where no heads fold into it, it is padded to 2.
    """
    if count == 1:
        return 1 if fold > 1 else 2
    return max(4, 1 << (count - 1).bit_length())


def _groups(spans: list[_Span], layout: KVLayout, fold: int) -> list[list[_Span]]:
    """Neighbouring spans of equal query length together, each group within the limits of gathered bytes and scores."""
    groups: list[list[_Span]] = []
    for queries, members in groupby(spans, key=lambda span: span.queries):
        group: list[_Span] = []
        for span in members:
            gathered = (len(group) + 1) * span.pages
            scores = gathered * layout.page_size * queries * fold
            if group and (gathered * layout.row_bytes > _MAX_GATHERED_BYTES or scores > _MAX_SCORES):
                groups.append(group)
                group = []
            group.append(span)
        groups.append(group)
    return groups


def _group(members: list[_Span], layout: KVLayout, scratch: int, device: str) -> AttentionGroup:
    queries, depth = members[0].queries, max(span.pages for span in members)
    pages: list[int] = []
    for span in members:
        pages.extend(span.chunk.sequence.pages[: span.pages])
        if span.pages < depth:
            pages.extend([scratch] * (depth - span.pages))
    rows: list[int] = []
    positions: list[int] = []
    valid: list[int] = []
    moved: list[tuple[int, int]] = []
    length = depth * layout.page_size
    for index, span in enumerate(members):
        if span.branch is not None:
            first = index * length
            moved += [(first + span.branch.start + n, first + place) for n, place in enumerate(span.branch.places)]
    if queries == 1:
        positions = [span.start for span in members]
    else:
        for index, span in enumerate(members):
            count, start = span.count, span.start
            padding = queries - count
            rows.extend([*range(span.row, span.row + count), *[0] * padding])
            positions.extend([*range(start, start + count), *[0] * padding])
            valid.extend(range(index * queries, index * queries + count))

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    query_positions = tensor(positions).view(len(members), queries)
    group = AttentionGroup(len(members), queries, query_positions, _by_layer(pages, 1, layout.layers, device))
    if len(valid) < len(rows):
        group.rows, group.valid = tensor(rows), tensor(valid)
    else:
        group.first = members[0].row
    if moved:
        group.moved = tensor([place for pair in zip(*moved, strict=True) for place in pair]).view(2, -1)
    return group
