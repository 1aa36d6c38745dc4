"""Random paged batches for the kernel tests: sequences over scattered pages, some of which they share."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind, row_bytes
from qpdsl.executor.kernels.data.paged_batch import PagedBatch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LAYERS = 2
# Largest difference to a float32 twin: the inputs' own rounding, and in 16 bits that of the weights and of the output.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def page_tables(
    contexts: Sequence[int], page_size: int, generator: torch.Generator, shared: Sequence[Sequence[int]] = ()
) -> tuple[list[list[int]], int]:
    """Page ids (multiples of LAYERS, shuffled) for each context, and the rows needed.

    `shared`: groups (pages, sequence, sequence, …); the later sequences take the first's leading pages, group by group.
    """
    counts = [-(-length // page_size) for length in contexts]
    order = (torch.randperm(sum(counts) + 1, generator=generator) * LAYERS).tolist()
    tables, at = [], 1
    for count in counts:
        tables.append(order[at : at + count])
        at += count
    for pages, reader, *others in shared:
        for other in others:
            tables[other][:pages] = tables[reader][:pages]
    return tables, (sum(counts) + 1) * LAYERS


def make_rows(
    count: int, page_size: int, kv_heads: int, dim: int, dtype: torch.dtype, kind: RowKind, generator: torch.Generator
) -> KVRows:
    """Rows full of random keys and values; unused bytes are those of real values."""
    values = torch.randn(count, page_size, 2, kv_heads, dim, generator=generator)
    if kind == "plain":
        return KVRows.plain(values.to(dtype).to(DEVICE))
    data = torch.zeros(count, row_bytes(kind, dtype, page_size, kv_heads, dim), dtype=torch.uint8, device=DEVICE)
    rows = KVRows.quantized(data, kind, page_size, kv_heads, dim)
    row, place = torch.arange(count, device=DEVICE)[:, None], torch.arange(page_size, device=DEVICE)
    rows.write(row, place, *values.to(DEVICE).unbind(-3))
    return rows


def make_batch(
    contexts: Sequence[int], queries: Sequence[int], tables: list[list[int]], page_size: int, decodes: int
) -> PagedBatch:
    """The batch in which sequence i has `queries[i]` new tokens at the end of `contexts[i]`."""
    width = max(len(table) for table in tables) + 1
    # What lies past a context may be any id: no kernel may read it.
    pages = torch.full((len(contexts), width), 1 << 28, dtype=torch.int32)
    slots = []
    for index, table in enumerate(tables):
        pages[index, : len(table)] = torch.tensor(table, dtype=torch.int32)
        for place in range(contexts[index] - queries[index], contexts[index]):
            slots.append(table[place // page_size] * page_size + place % page_size)
    start = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    return PagedBatch(
        pages.to(DEVICE),
        torch.tensor(contexts, dtype=torch.int32, device=DEVICE),
        torch.tensor(slots, dtype=torch.int64, device=DEVICE),
        start.to(DEVICE),
        decodes,
        max(contexts),
        max(queries),
    )


def make_query(tokens: int, heads: int, dim: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Queries [T, H, D] laid out as transformers leaves them: heads before tokens in memory."""
    return torch.randn(heads, tokens, dim, generator=generator).to(dtype).to(DEVICE).transpose(0, 1)
