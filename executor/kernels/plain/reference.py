"""Torch twins of the Triton kernels, on the same metadata: plain, in float32, one sequence after the other."""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.data import kv_rows
from qpdsl.executor.kernels.data.kv_rows import Rows
from qpdsl.executor.kernels.data.paged_batch import Cascade, PagedBatch, Scoring


def store(rows: Rows, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, layer: int) -> None:
    """Writes `key` and `value` [T, KV, D] of one layer to `slots` int64 [T], in place; quantizes where rows are."""
    row, place = slots // rows.page_size + layer, slots % rows.page_size
    for which, new in enumerate((key, value)):
        if rows.kind == "plain":
            rows.data[row, place, which] = new.to(rows.data.dtype)
        else:
            data, scales = rows.split()
            data[row, place, which], scales[row, place, which] = kv_rows.encode(new, rows.kind)


def gather(rows: Rows, pages: torch.Tensor, layer: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values float32 [length, KV, D] of one sequence; `pages` int32 [P]."""
    row = pages[: -(-length // rows.page_size)].long() + layer
    if rows.kind == "plain":
        found = rows.data[row].float()
    else:
        data, scales = rows.split()
        found = kv_rows.decode(data[row], scales[row], rows.kind)
    found = found.flatten(0, 1)[:length]
    return found[:, 0], found[:, 1]


def scores(
    query: torch.Tensor, keys: torch.Tensor, position: torch.Tensor, first: int, scoring: Scoring
) -> torch.Tensor:
    """Masked scores float32 [H, Q, K] of `query` [Q, H, D] at `position` [Q] over `keys` [K, KV, D] from `first` on."""
    keys = keys.repeat_interleave(query.shape[1] // keys.shape[1], dim=1)
    found = torch.einsum("qhd,khd->hqk", query.float(), keys) * scoring.scale
    if scoring.softcap is not None:
        found = torch.tanh(found / scoring.softcap) * scoring.softcap
    behind = position[:, None] - torch.arange(first, first + keys.shape[0], device=keys.device)
    hidden = behind < 0
    if scoring.window is not None:
        hidden |= behind >= scoring.window
    return found.masked_fill(hidden, float("-inf"))


def weigh(found: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax of `found` [H, Q, K] over `values` [K, KV, D]: the mean [Q, H, D] and the log-sum-exp [Q, H].

    Where nothing is visible the mean is zero and the log-sum-exp −inf.
    """
    values = values.repeat_interleave(found.shape[0] // values.shape[1], dim=1)
    total = found.logsumexp(dim=-1)
    weights = torch.nan_to_num(torch.exp(found - total[..., None]), nan=0.0)
    return torch.einsum("hqk,khd->qhd", weights, values), total.T


def attention(query: torch.Tensor, rows: Rows, batch: PagedBatch, layer: int, scoring: Scoring) -> torch.Tensor:
    """Causal attention of `query` [T, H, D] over each sequence's pages up to its context: [T, H, D]."""
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    starts, contexts = batch.query_start.tolist(), batch.context.tolist()
    for sequence, length in enumerate(contexts):
        begin, end = starts[sequence], starts[sequence + 1]
        if length == 0 or begin == end:
            continue
        keys, values = gather(rows, batch.pages[sequence], layer, length)
        position = torch.arange(length - (end - begin), length, device=query.device)
        found = scores(query[begin:end], keys, position, 0, scoring)
        if scoring.sinks is not None:
            sinks = scoring.sinks.float()[:, None, None].expand(-1, end - begin, 1)
            found = torch.cat((sinks, found), dim=-1)
            values = torch.cat((torch.zeros_like(values[:1]), values))
        out[begin:end] = weigh(found, values)[0].to(out.dtype)
    return out


def cascade(
    query: torch.Tensor, rows: Rows, batch: PagedBatch, shared: Cascade, layer: int, scoring: Scoring
) -> torch.Tensor:
    """One query [B, H, D] a sequence: each shared range once for its tile, each own range alone, then merged."""
    parts: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in range(query.shape[0])]
    position = batch.context.long() - 1
    members = shared.members.long()
    for first, last, begin, end, _ in shared.tiles.tolist():
        if first == last:
            continue
        keys, values = gather(rows, batch.pages[members[first]], layer, end)
        tile = members[first:last]
        found = scores(query[tile], keys[begin:], position[tile], begin, scoring)
        mean, total = weigh(found, values[begin:])
        for index, sequence in enumerate(tile.tolist()):
            parts[sequence].append((mean[index], total[index]))
    starts, contexts = shared.start.tolist(), batch.context.tolist()
    for sequence in range(query.shape[0]):
        begin = starts[sequence]
        if contexts[sequence] > begin:
            keys, values = gather(rows, batch.pages[sequence], layer, contexts[sequence])
            found = scores(query[sequence, None], keys[begin:], position[sequence, None], begin, scoring)
            mean, total = weigh(found, values[begin:])
            parts[sequence].append((mean[0], total[0]))
    if scoring.sinks is not None:
        nothing = torch.zeros(query.shape[1:], device=query.device)
        parts = [[*part, (nothing, scoring.sinks.float())] for part in parts]
    return torch.stack([merge(part, query[0]) for part in parts]).to(query.dtype)


def merge(parts: list[tuple[torch.Tensor, torch.Tensor]], like: torch.Tensor) -> torch.Tensor:
    """Joins softmax means [H, D] by their log-sum-exps [H] (Juravsky et al., "Hydragen", 2024, section 3.1)."""
    if not parts:
        return torch.zeros_like(like, dtype=torch.float32)
    means = torch.stack([mean for mean, _ in parts])
    totals = torch.stack([total for _, total in parts])
    weights = torch.nan_to_num(torch.exp(totals - totals.logsumexp(dim=0)), nan=0.0)
    return (means * weights[..., None]).sum(dim=0)
