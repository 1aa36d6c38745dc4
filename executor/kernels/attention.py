"""Paged attention in torch: write the new keys and values to their slots, gather whole pages, attend.

Rows are grouped by query length and context length, so one call serves many sequences. Grouped queries are folded into
the query length, which on a CPU is several times faster than `enable_gqa`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention


@dataclass(slots=True)
class Group:
    """Sequences that attend in one call: B of them, Q query rows each (padded), P pages of context each (padded).

    `rows` int64 [B*Q]: the batch row of each query, row 0 where padded. `valid` int64: which of the B*Q are real, None
    for all. `positions` int64 [B, Q]: their places in the sequence, 0 where padded. `pages` int64 [B*P]. `first`: the
    first of the rows where they are all real and neighbours, so that a slice serves; else None.
    """

    batch: int
    queries: int
    rows: torch.Tensor
    valid: torch.Tensor | None
    positions: torch.Tensor
    pages: torch.Tensor
    first: int | None = None
    _masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, length: int, fold: int, dtype: torch.dtype) -> torch.Tensor:
        """Additive causal mask [B, 1, Q*fold, length], within the last `window` positions where one is given.

        Built once a step and shared by all layers with that window.
        """
        mask = self._masks.get(window)
        if mask is None:
            keys = torch.arange(length, device=self.positions.device)
            behind = self.positions[:, :, None] - keys
            hidden = behind < 0
            if window is not None:
                hidden |= behind >= window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            mask.masked_fill_(hidden, float("-inf"))
            if self.queries > 1:
                mask = mask.repeat_interleave(fold, dim=1)
            mask = mask[:, None]
            self._masks[window] = mask
        return mask


def write_kv(cache: torch.Tensor, new: torch.Tensor, slots: torch.Tensor) -> None:
    """Stores `new` [T, KV, D] at `slots` int64 [T] of `cache` [pages, page_size, KV, D], in place."""
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, new)


def paged_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    groups: list[Group],
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Causal attention of `query` [T, H, D] over paged `keys` and `values` [pages, page_size, KV, D].

    Returns [T, H, D]; rows that are in no group are zero. `softcap` c bends scores s to c·tanh(s/c) (Gemma 2).
    """
    heads, dim = query.shape[1:]
    page_size, kv_heads = keys.shape[1:3]
    fold = heads // kv_heads
    flat_keys, flat_values = keys.flatten(1), values.flatten(1)
    out = torch.zeros_like(query)
    for group in groups:
        b, q = group.batch, group.queries
        length = group.pages.numel() // b * page_size
        end = None if group.first is None else group.first + b * q
        selected = query.index_select(0, group.rows) if end is None else query[group.first : end]
        grouped = selected.view(b, q, kv_heads, fold, dim)
        grouped = grouped.permute(0, 2, 1, 3, 4).reshape(b, kv_heads, q * fold, dim)
        k = flat_keys.index_select(0, group.pages).view(b, length, kv_heads, dim).transpose(1, 2)
        v = flat_values.index_select(0, group.pages).view(b, length, kv_heads, dim).transpose(1, 2)
        mask = group.mask(window, length, fold, query.dtype)
        if softcap is None:
            mixed = scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scaling)
        else:
            scores = torch.tanh(grouped @ k.transpose(-1, -2) * (scaling / softcap)) * softcap
            mixed = torch.softmax(scores + mask, dim=-1, dtype=torch.float32).to(v.dtype) @ v
        mixed = mixed.view(b, kv_heads, q, fold, dim).permute(0, 2, 1, 3, 4).reshape(b * q, heads, dim)
        if end is not None:
            out[group.first : end] = mixed
        elif group.valid is None:
            out.index_copy_(0, group.rows, mixed)
        else:
            out.index_copy_(0, group.rows.index_select(0, group.valid), mixed.index_select(0, group.valid))
    return out
