"""Torch twins of the Triton kernels, on the same metadata: in float32, one sequence after the other.

They say what the kernels compute, and serve where there is no device.
"""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, PrefixCascade, Scoring


def store(rows: KVRows, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, layer: int) -> None:
    """Writes `key` and `value` [T, KV, D] of one layer to `slots` int64 [T], in place; quantizes where the rows are."""
    row, place = slots // rows.page_size + layer, slots % rows.page_size
    rows.write(row, place, key, value)


def gather(rows: KVRows, pages: torch.Tensor, layer: int, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values float32 [L, KV, D] at `places` int64 [L] of one sequence; `pages` int32 [P]."""
    row, place = pages[places // rows.page_size].long() + layer, places % rows.page_size
    return rows.read(row, place)


def places_of(batch: PagedBatch, sequence: int, length: int) -> torch.Tensor:
    """Where the first `length` positions of a sequence lie: places int64 [length]."""
    places = torch.arange(length, device=batch.pages.device)
    if batch.paths is not None and length > (start := int(batch.paths.start[sequence])):
        places[start:] = batch.paths.places[sequence, : length - start]
    return places


def scores(
    query: torch.Tensor, keys: torch.Tensor, position: torch.Tensor, first: int, scoring: Scoring
) -> torch.Tensor:
    """Masked scores float32 [H, Q, K] of `query` [Q, H, D] at `position` [Q] and `keys` [K, KV, D] from `first` on."""
    keys = keys.repeat_interleave(query.shape[1] // keys.shape[1], dim=1)
    logits = torch.einsum("qhd,khd->hqk", query.float(), keys) * scoring.scale
    if scoring.softcap is not None:
        logits = torch.tanh(logits / scoring.softcap) * scoring.softcap
    places = torch.arange(first, first + keys.shape[0], device=keys.device)
    if scoring.alibi is not None:
        logits = logits + scoring.alibi.bias(position[:, None], places)
    return logits.masked_fill(scoring.hidden(position[:, None], places), float("-inf"))


def weigh(logits: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means [Q, H, D] of `values` [K, KV, D] by the softmax of `logits` [H, Q, K], and log-sum-exps [Q, H].

    Where nothing is visible the mean is zero and the log-sum-exp −inf.
    """
    values = values.repeat_interleave(logits.shape[0] // values.shape[1], dim=1)
    total = logits.logsumexp(dim=-1)
    weights = torch.nan_to_num(torch.exp(logits - total[..., None]), nan=0.0)
    return torch.einsum("hqk,khd->qhd", weights, values), total.T


def attention(query: torch.Tensor, rows: KVRows, batch: PagedBatch, layer: int, scoring: Scoring) -> torch.Tensor:
    """Causal attention of `query` [T, H, D] over each sequence's pages up to its context: [T, H, D]."""
    out = query.new_zeros((*query.shape[:2], rows.value_dim))
    starts, contexts = batch.query_start.tolist(), batch.context.tolist()
    for sequence, length in enumerate(contexts):
        begin, end = starts[sequence], starts[sequence + 1]
        if length == 0 or begin == end:
            continue
        keys, values = gather(rows, batch.pages[sequence], layer, places_of(batch, sequence, length))
        position = torch.arange(length - (end - begin), length, device=query.device)
        logits = scores(query[begin:end], keys, position, 0, scoring)
        if scoring.sinks is not None:
            sinks = scoring.sinks.float()[:, None, None].expand(-1, end - begin, 1)
            logits = torch.cat((sinks, logits), dim=-1)
            values = torch.cat((torch.zeros_like(values[:1]), values))
        out[begin:end] = weigh(logits, values)[0].to(out.dtype)
    return out


def cascade(
    query: torch.Tensor, rows: KVRows, batch: PagedBatch, shared: PrefixCascade, layer: int, scoring: Scoring
) -> torch.Tensor:
    """Attention of one query [B, H, D] a sequence: each shared range once for its tile, own ranges alone, merged."""
    parts: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in range(query.shape[0])]
    position = batch.context.long() - 1
    members = shared.members.long()
    for first, last, begin, end, _ in shared.tiles.tolist():
        if first == last:
            continue
        keys, values = gather(rows, batch.pages[members[first]], layer, torch.arange(end, device=query.device))
        tile = members[first:last]
        mean, total = weigh(scores(query[tile], keys[begin:], position[tile], begin, scoring), values[begin:])
        for index, sequence in enumerate(tile.tolist()):
            parts[sequence].append((mean[index], total[index]))
    starts, contexts = shared.start.tolist(), batch.context.tolist()
    for sequence in range(query.shape[0]):
        begin = starts[sequence]
        if contexts[sequence] > begin:
            places = places_of(batch, sequence, contexts[sequence])
            keys, values = gather(rows, batch.pages[sequence], layer, places)
            logits = scores(query[sequence, None], keys[begin:], position[sequence, None], begin, scoring)
            mean, total = weigh(logits, values[begin:])
            parts[sequence].append((mean[0], total[0]))
    if scoring.sinks is not None:
        zero = torch.zeros(query.shape[1:], dtype=torch.float32, device=query.device)
        parts = [[*part, (zero, scoring.sinks.float())] for part in parts]
    return torch.stack([merge(part, query[0]) for part in parts]).to(query.dtype)


def merge(parts: list[tuple[torch.Tensor, torch.Tensor]], like: torch.Tensor) -> torch.Tensor:
    """Joins softmax means [H, D] by their log-sum-exps [H] (Juravsky et al., "Hydragen", 2024, section 3.1)."""
    if not parts:
        return torch.zeros_like(like, dtype=torch.float32)
    means = torch.stack([mean for mean, _ in parts])
    totals = torch.stack([total for _, total in parts])
    weights = torch.nan_to_num(torch.exp(totals - totals.logsumexp(dim=0)), nan=0.0)
    return (means * weights[..., None]).sum(dim=0)
