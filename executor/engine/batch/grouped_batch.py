"""Attention in torch: chunks laid out in groups of sequences that attend in one call each.

New keys and values are written to their slots, whole pages gathered, and attended. Sequences are grouped by query
length and context length, so one call serves many of them. Query heads that share a KV head are folded into the query
length, which on a CPU is several times faster than `enable_gqa`. Contexts are whole pages, and query rows are padded to
lengths whose kernels sum alike, so a row's bits do not depend on its group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from qpdsl.executor.engine.memory.kv_cache import KVCache, KVLayout
from qpdsl.executor.engine.memory.sequence import Chunk, TreeRow, in_step
from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import Heads, Scoring
from qpdsl.executor.kernels.data.states import StateSegment
from qpdsl.executor.kernels.linear import PADDED_ROWS

# A gather larger than this falls out of a core's own cache before attention has read it.
_MAX_GATHERED_BYTES = 1 << 19
_MAX_SCORES = 1 << 20
# For fewer rows BLAS has other code, which sums in another order.
_MIN_QUERIES = 8


@dataclass(slots=True)
class GroupedBatch:
    """One forward over T rows. Padding rows write to the scratch page and are in no group.

    `tokens`, `positions` int64 [T]. `slots`: for each row of a page (`LayerRows.number`) int64 [T], where each row's KV
    goes. `read_rows` int64 [W]: the rows whose hidden state is read, None for all of them, in the order of `readers`:
    chunks, and how many rows of each are read. All positions are below `longest`. `segments`: where layers keep states,
    in the order of their rows.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: tuple[torch.Tensor, ...]
    groups: list[AttentionGroup]
    read_rows: torch.Tensor | None
    readers: list[tuple[Chunk, int]]
    longest: int
    segments: tuple[StateSegment, ...] = ()

    def attend(self, cache: KVCache, heads: Heads, layer: int, scoring: Scoring) -> torch.Tensor:
        """A layer's attention [T, H, V]; keys and values are stored before it."""
        rows, number = cache.of_layer[layer]
        write_kv(rows, heads.key, heads.value, self.slots[number])
        return paged_attention(heads.query, rows, number, self.groups, scoring)


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
    branch: TreeRow | None = None
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
        _by_row(slots, page_size, layout.rows, device),
        [_group(members, layout, scratch, device) for members in _groups(spans, layout, fold)],
        torch.tensor(read_rows, dtype=torch.long, device=device) if read_rows != [*range(len(tokens))] else None,
        readers,
        max(positions) + 1,
        in_step([(span.chunk, span.row) for span in spans if span.branch is None]),
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


def _by_row(values: list[int], step: int, rows: int, device: str) -> tuple[torch.Tensor, ...]:
    """For each row of a page the values, larger by `step` than in the row before."""
    table = np.array(values) + np.arange(0, rows * step, step)[:, None]
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
            if group and (gathered * layout.layer_bytes > _MAX_GATHERED_BYTES or scores > _MAX_SCORES):
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
    group = AttentionGroup(len(members), queries, query_positions, _by_row(pages, 1, layout.rows, device))
    if len(valid) < len(rows):
        group.rows, group.valid = tensor(rows), tensor(valid)
    else:
        group.first = members[0].row
    if moved:
        group.moved = tensor([place for pair in zip(*moved, strict=True) for place in pair]).view(2, -1)
    return group


@dataclass(slots=True)
class AttentionGroup:
    """Sequences that attend in one call: B of them, Q query rows each (padded), P pages of context each (padded).

    batch, queries: B and Q
    positions: int64 [B, Q], the queries' positions in their sequences, 0 where padded
    pages:     for each row of a page the cache rows int64 [B*P] of the pages
    first:     the first batch row, where the batch rows are all real and consecutive, so that a slice serves; else None
    rows:      without `first`, int64 [B*Q], the batch row of each query, 0 where padded
    valid:     without `first`, int64, which of the B*Q queries are real
    moved:     for paths in trees (see `Paths`), int64 [2, M]: of the B·L tokens of the contexts, those that others
               stand in for, and these; None where every token lies in its place
    """

    batch: int
    queries: int
    positions: torch.Tensor
    pages: tuple[torch.Tensor, ...]
    first: int | None = None
    rows: torch.Tensor | None = None
    valid: torch.Tensor | None = None
    moved: torch.Tensor | None = None
    _masks: dict[tuple[int | None, ...], torch.Tensor] = field(default_factory=dict)

    def mask(self, scoring: Scoring, length: int, fold: int, dtype: torch.dtype) -> torch.Tensor:
        """What is added to scores, -inf where a key is not seen: [B, 1 or KV, Q*fold, length].

        Built once a step and shared by all layers that see alike.
        """
        alibi = scoring.alibi
        kind = (scoring.window, scoring.chunk, fold, None if alibi is None else id(alibi.slopes))
        mask = self._masks.get(kind)
        if mask is None:
            queries, keys = self.positions[:, :, None], torch.arange(length, device=self.positions.device)
            hidden = scoring.hidden(queries, keys)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            mask.masked_fill_(hidden, float("-inf"))
            if alibi is None:
                if self.queries > 1:
                    mask = mask.repeat_interleave(fold, dim=1)
                mask = mask[:, None]
            else:
                by_head = torch.unflatten(alibi.bias(queries, keys).to(dtype), -3, (-1, fold))
                mask = (by_head + mask[:, None, None]).transpose(2, 3).flatten(2, 3)
            self._masks[kind] = mask
        return mask


def write_kv(rows: KVRows, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """Stores keys [T, KV, D] and values [T, KV, V] at `slots` int64 [T], in place; quantizes where the rows are."""
    if rows.kind == "plain" and rows.data.is_contiguous() and rows.value is None:
        rows.data.view(-1, *rows.data.shape[2:]).index_copy_(0, slots, torch.stack((key, value), dim=1))
        return
    rows.write(slots // rows.page_size, slots % rows.page_size, key, value)


def paged_attention(
    query: torch.Tensor, rows: KVRows, number: int, groups: list[AttentionGroup], scoring: Scoring
) -> torch.Tensor:
    """Causal attention of `query` [T, H, D], with heads that share a KV head as neighbours, over a row of each page.

    Returns [T, H, V]; rows that are in no group are zero.
    """
    count, heads, dim = query.shape
    kv_heads, fold, width = rows.kv_heads, heads // rows.kv_heads, rows.value_dim
    query = query.reshape(count, kv_heads, fold, dim).transpose(1, 2)
    out = None
    for group in groups:
        b, q = group.batch, group.queries
        pages = group.pages[number]
        length = pages.numel() // b * rows.page_size
        first = group.first
        if first is not None:
            selected = query if b * q == count else query[first : first + b * q]
        else:
            assert group.rows is not None
            selected = query.index_select(0, group.rows)
        folded = selected if q == 1 else selected.reshape(b, q * fold, kv_heads, dim)
        gathered = _gather(rows, pages, query.dtype).view(b * length, -1)
        if group.moved is not None:
            gathered.index_copy_(0, group.moved[0], gathered.index_select(0, group.moved[1]))
        k = gathered[:, : kv_heads * dim].view(b, length, kv_heads, dim).transpose(1, 2)
        v = k[..., :width]
        if not rows.latent:
            v = gathered[:, kv_heads * dim :].view(b, length, kv_heads, width).transpose(1, 2)
        mask = group.mask(scoring, length, fold, query.dtype)
        mixed = _mix(folded.transpose(1, 2), k, v, mask, scoring).transpose(1, 2)
        mixed = mixed.reshape(b * q, fold, kv_heads, width)
        if first is not None and b * q == count:
            return mixed.transpose(1, 2).flatten(1, 2)
        if out is None:
            out = torch.zeros((count, fold, kv_heads, width), dtype=query.dtype, device=query.device)
        if first is not None:
            out[first : first + b * q] = mixed
        else:
            assert group.rows is not None and group.valid is not None
            out.index_copy_(0, group.rows.index_select(0, group.valid), mixed.index_select(0, group.valid))
    mixed = query.new_zeros((count, fold, kv_heads, width)) if out is None else out
    return mixed.transpose(1, 2).flatten(1, 2)


def _gather(rows: KVRows, pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The rows `pages` int64 [N], decoded: of each token its keys [KV, D] and its values [KV, V]."""
    stored = rows.data.flatten(1).index_select(0, pages)
    if rows.kind == "plain":
        return stored
    return KVRows.quantized(stored, rows.kind, rows.page_size, rows.kv_heads, rows.dim).decoded().to(dtype)


def _mix(query: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scoring: Scoring) -> torch.Tensor:
    """Attention of `query` [B, KV, Q, D] over `k` and `v` [B, KV, L, D or V] with an additive `mask`."""
    count = query.shape[2]
    if count < _MIN_QUERIES:
        missing = (0, 0, 0, _MIN_QUERIES - count)
        padded = _mix(pad(query, missing), k, v, pad(mask, missing) if mask.shape[2] > 1 else mask, scoring)
        return padded[:, :, :count]
    if scoring.softcap is None and scoring.sinks is None:
        return scaled_dot_product_attention(query, k, v, attn_mask=mask, scale=scoring.scale)
    scores = query @ k.transpose(-1, -2) * scoring.scale
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    scores = scores + mask
    if scoring.sinks is not None:
        batch, kv_heads, queries, _ = scores.shape
        # Rows are query by query, each with its heads.
        sinks = scoring.sinks.to(scores.dtype).view(kv_heads, -1)
        sinks = sinks.repeat(1, -(-queries // sinks.shape[1]))[:, :queries].expand(batch, -1, -1)
        scores = torch.cat((scores, sinks[..., None]), dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
    return weights[..., : k.shape[2]] @ v
