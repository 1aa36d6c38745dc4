"""Paged attention in torch: write the new keys and values to their slots, gather whole pages, attend.

Sequences are grouped by query length and context length, so one call serves many of them. Query heads that share a KV
head are folded into the query length, which on a CPU is several times faster than `enable_gqa`. Contexts are whole
pages, and query rows are padded to lengths whose kernels sum alike, so a row's bits do not depend on its group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import Scoring

# For fewer rows BLAS has other code, which sums in another order.
_LEAST_QUERIES = 8


@dataclass(slots=True)
class AttentionGroup:
    """Sequences that attend in one call: B of them, Q query rows each (padded), P pages of context each (padded).

    batch, queries: B and Q
    positions: int64 [B, Q], the queries' positions in their sequences, 0 where padded
    pages:     for each layer the cache rows int64 [B*P] of the pages
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
    _masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, length: int, fold: int, dtype: torch.dtype) -> torch.Tensor:
        """Additive causal mask [B, 1, Q*fold, length], within the last `window` positions where one is given.

        Built once a step and shared by all layers with that window.
        """
        mask = self._masks.get(window)
        if mask is None:
            keys = torch.arange(length, device=self.positions.device)
            distance = self.positions[:, :, None] - keys
            hidden = distance < 0
            if window is not None:
                hidden |= distance >= window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            mask.masked_fill_(hidden, float("-inf"))
            if self.queries > 1:
                mask = mask.repeat_interleave(fold, dim=1)
            mask = mask[:, None]
            self._masks[window] = mask
        return mask


def write_kv(rows: KVRows, new: torch.Tensor, slots: torch.Tensor) -> None:
    """Stores keys and values `new` [T, 2, KV, D] at `slots` int64 [T], in place; quantizes where the rows are."""
    if rows.kind == "plain":
        rows.data.view(-1, *rows.data.shape[2:]).index_copy_(0, slots, new)
        return
    rows.write(slots // rows.page_size, slots % rows.page_size, new)


def paged_attention(
    query: torch.Tensor,
    rows: KVRows,
    layer: int,
    groups: list[AttentionGroup],
    scoring: Scoring,
) -> torch.Tensor:
    """Causal attention of `query` [T, H, D], with heads that share a KV head as neighbours, over one layer's pages.

    Returns [T, H, D]; rows that are in no group are zero.
    """
    count, heads, dim = query.shape
    kv_heads, fold = rows.kv_heads, heads // rows.kv_heads
    query = query.reshape(count, kv_heads, fold, dim).transpose(1, 2)
    out = None
    for group in groups:
        b, q = group.batch, group.queries
        pages = group.pages[layer]
        length = pages.numel() // b * rows.page_size
        first = group.first
        if first is not None:
            selected = query if b * q == count else query[first : first + b * q]
        else:
            assert group.rows is not None
            selected = query.index_select(0, group.rows)
        folded = selected if q == 1 else selected.reshape(b, q * fold, kv_heads, dim)
        gathered = _gather(rows, pages, query.dtype).view(b * length, 2, kv_heads, dim)
        if group.moved is not None:
            gathered.index_copy_(0, group.moved[0], gathered.index_select(0, group.moved[1]))
        k, v = gathered.view(b, length, 2, kv_heads, dim).permute(2, 0, 3, 1, 4)
        mask = group.mask(scoring.window, length, fold, query.dtype)
        mixed = _mix(folded.transpose(1, 2), k, v, mask, scoring).transpose(1, 2)
        mixed = mixed.reshape(b * q, fold, kv_heads, dim)
        if first is not None and b * q == count:
            return mixed.transpose(1, 2).flatten(1, 2)
        if out is None:
            out = torch.zeros((count, fold, kv_heads, dim), dtype=query.dtype, device=query.device)
        if first is not None:
            out[first : first + b * q] = mixed
        else:
            assert group.rows is not None and group.valid is not None
            out.index_copy_(0, group.rows.index_select(0, group.valid), mixed.index_select(0, group.valid))
    mixed = torch.zeros_like(query) if out is None else out
    return mixed.transpose(1, 2).flatten(1, 2)


def _gather(rows: KVRows, pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The rows `pages` int64 [N], decoded: [N, page_size, 2, KV, D] in memory."""
    stored = rows.data.flatten(1).index_select(0, pages)
    if rows.kind == "plain":
        return stored
    return KVRows.quantized(stored, rows.kind, rows.page_size, rows.kv_heads, rows.dim).decoded().to(dtype)


def _mix(query: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scoring: Scoring) -> torch.Tensor:
    """Attention of `query` [B, KV, Q, D] over `k`, `v` [B, KV, L, D] with an additive `mask` [B, 1, Q or 1, L]."""
    count = query.shape[2]
    if count < _LEAST_QUERIES:
        missing = (0, 0, 0, _LEAST_QUERIES - count)
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
