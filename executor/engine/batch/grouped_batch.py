"""Chunks laid out for attention in torch: groups of sequences that attend in one call each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from qpdsl.executor.engine.memory.kv_cache import KVCache, KVLayout
from qpdsl.executor.engine.memory.sequence import Chunk
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
    """One chunk's place in the batch: rows from `row` on, padded to `queries` rows over `pages` pages to attend."""

    chunk: Chunk
    row: int
    queries: int
    pages: int


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
    spans: list[_Span] = []
    # In the order in which they are grouped, so that a group's rows are neighbours.
    sized = [(_padded(c.rows, fold), -(-(c.sequence.computed + c.rows) // page_size), c) for c in chunks]
    for queries, depth, chunk in sorted(sized, key=lambda size: size[:2]):
        sequence, start = chunk.sequence, chunk.sequence.computed
        end = start + chunk.rows
        row = len(tokens)
        pages = sequence.pages
        if chunk.rows == 1:
            tokens.append(sequence.tokens[start])
            positions.append(start)
            slots.append(pages[depth - 1] * page_size + start % page_size)
        else:
            tokens.extend(chunk.tokens)
            positions.extend(chunk.positions)
            slots.extend([pages[i // page_size] * page_size + i % page_size for i in range(start, end)])
        spans.append(_Span(chunk, row, queries, depth))
        read = chunk.read_rows
        if read:
            read_rows.extend([row + own for own in read])
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
        torch.tensor(read_rows, dtype=torch.long, device=device) if len(read_rows) < len(tokens) else None,
        readers,
        max(positions) + 1,
    )


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
    if queries == 1:
        positions = [span.chunk.sequence.computed for span in members]
    else:
        for index, span in enumerate(members):
            count, start = span.chunk.rows, span.chunk.sequence.computed
            padding = queries - count
            rows.extend([*range(span.row, span.row + count), *[0] * padding])
            positions.extend([*range(start, start + count), *[0] * padding])
            valid.extend(range(index * queries, index * queries + count))

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    query_positions = tensor(positions).view(len(members), queries)
    by_layer = _by_layer(pages, 1, layout.layers, device)
    if len(valid) < len(rows):
        return AttentionGroup(len(members), queries, query_positions, by_layer, None, tensor(rows), tensor(valid))
    return AttentionGroup(len(members), queries, query_positions, by_layer, members[0].row)
