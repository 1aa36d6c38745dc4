"""From scheduled chunks to the tensors of one forward."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch

from qpdsl.executor.engine.request import GenerateRequest
from qpdsl.executor.engine.scheduler import Chunk
from qpdsl.executor.kernels.attention import Group

# Fewer rows take other matrix kernels, whose sums round differently: a row's bits would depend on its neighbours.
MIN_ROWS = 16
# A gather larger than this falls out of the CPU's caches.
_MAX_GATHERED_TOKENS = 4096
_MAX_SCORES = 1 << 20


@dataclass(slots=True)
class Batch:
    """One forward over T rows (padded to `MIN_ROWS`; padding writes to the scratch page and is in no group).

    `tokens`, `positions` int64 [1, T]; `slots` int64 [T]: where each row's KV goes; `wanted` int64 [W]: the rows whose
    hidden state is read, in the order of `readers`: (sequence's chunk, rows of it).
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    groups: list[Group]
    wanted: torch.Tensor
    readers: list[tuple[Chunk, int]]


@dataclass(frozen=True, slots=True)
class _Span:
    """One chunk's place in the batch: rows from `row` on, padded to `queries` rows over `pages` pages to attend."""

    chunk: Chunk
    row: int
    queries: int
    pages: int


def build(chunks: list[Chunk], page_size: int, fold: int, device: str) -> Batch:
    """Lays the chunks out one after the other. `fold`: query heads per KV head."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    wanted: list[int] = []
    readers: list[tuple[Chunk, int]] = []
    spans: list[_Span] = []
    # In the order in which they are grouped, so that a group's rows are neighbours.
    sized = [(_padded(c.count, fold), -(-(c.sequence.computed + c.count) // page_size), c) for c in chunks]
    for queries, depth, chunk in sorted(sized, key=lambda size: size[:2]):
        sequence, start = chunk.sequence, chunk.sequence.computed
        end = start + chunk.count
        row = len(tokens)
        pages = sequence.pages
        if chunk.count == 1:
            tokens.append(sequence.tokens[start])
            positions.append(start)
            slots.append(pages[-1] * page_size + start % page_size)
        else:
            tokens.extend(sequence.tokens[start:end])
            positions.extend(range(start, end))
            slots.extend([pages[at // page_size] * page_size + at % page_size for at in range(start, end)])
        spans.append(_Span(chunk, row, queries, depth))
        rows = _wanted(chunk, start, end)
        if rows:
            wanted.extend(row + at - start for at in rows)
            readers.append((chunk, len(rows)))
    padding = max(0, MIN_ROWS - len(tokens))
    tokens.extend([0] * padding)
    positions.extend([0] * padding)
    slots.extend([0] * padding)

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    return Batch(
        tensor(tokens)[None],
        tensor(positions)[None],
        tensor(slots),
        [_group(members, device) for members in _groups(spans, page_size, fold)],
        tensor(wanted),
        readers,
    )


def _wanted(chunk: Chunk, start: int, end: int) -> list[int]:
    request = chunk.sequence.request
    if isinstance(request, GenerateRequest):
        return [end - 1] if end == len(chunk.sequence.tokens) else []
    return [at for at in request.positions if start <= at < end]


def _padded(count: int, fold: int) -> int:
    """Query rows that attention computes for `count`: 1, or a power of two.

    A lone row is a vector product with sums of its own, so where nothing folds into the query length it is paired.
    """
    if count == 1:
        return 1 if fold > 1 else 2
    return max(4, 1 << (count - 1).bit_length())


def _groups(spans: list[_Span], page_size: int, fold: int) -> list[list[_Span]]:
    """Neighbouring spans of like size together, each group within the gather and score limits."""
    groups: list[list[_Span]] = []
    for queries, members in groupby(spans, key=lambda span: span.queries):
        group: list[_Span] = []
        for span in members:
            gathered = (len(group) + 1) * span.pages * page_size
            if group and (gathered > _MAX_GATHERED_TOKENS or gathered * queries * fold > _MAX_SCORES):
                groups.append(group)
                group = []
            group.append(span)
        groups.append(group)
    return groups


def _group(members: list[_Span], device: str) -> Group:
    queries, depth = members[0].queries, max(span.pages for span in members)
    rows: list[int] = []
    positions: list[list[int]] = []
    valid: list[int] = []
    pages: list[int] = []
    for index, span in enumerate(members):
        count, start = span.chunk.count, span.chunk.sequence.computed
        if queries == 1:
            rows.append(span.row)
            positions.append([start])
            valid.append(index)
            pages.extend(span.chunk.sequence.pages + [0] * (depth - span.pages))
            continue
        padding = queries - count
        rows.extend([*range(span.row, span.row + count), *[0] * padding])
        positions.append([*range(start, start + count), *[0] * padding])
        valid.extend(range(index * queries, index * queries + count))
        pages.extend([*span.chunk.sequence.pages[: span.pages], *[0] * (depth - span.pages)])

    def tensor(values: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    if len(valid) < len(rows):
        return Group(len(members), queries, tensor(rows), tensor(valid), tensor(positions), tensor(pages))
    return Group(len(members), queries, tensor(rows), None, tensor(positions), tensor(pages), members[0].row)
