"""The layout of one model's keys and values in memory.

A *row* is one page of one layer; a page is the rows of all its layers, one after the other. A page goes by the number
of its first row, so layer l of page p is row p + l.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from qpdsl.executor.kernels.data import int4_groups
from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind, row_bytes

# Keys and values in eight bits with a float32 scale for each token and head, or keys so and values in four bits with a
# scale and a minimum for each group along a head; None: in the model's own type.
KVType = Literal["int8", "fp8", "int4"]
KV_TYPES: tuple[KVType, ...] = get_args(KVType)


def suits(kv_type: KVType, head_dim: int) -> bool:
    """Whether heads so wide can be kept in that type."""
    return kv_type != "int4" or int4_groups.suits(head_dim)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The geometry of a model's KV: a row holds [page_size, 2, kv_heads, head_dim], key and then value, in `dtype`.

    With `kv_type` a row holds those numbers in fewer bits, and their scales (see `KVRows`).
    """

    layers: int
    page_size: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    kv_type: KVType | None = None

    @property
    def kind(self) -> RowKind:
        return self.kv_type or "plain"

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.kind, self.dtype, self.page_size, self.kv_heads, self.head_dim)

    @property
    def page_bytes(self) -> int:
        return self.layers * self.row_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes over all layers."""
        return self.page_bytes // self.page_size


class KVCache:
    """One model's view of a byte buffer uint8 [bytes] that models share.

    `rows` spans the whole buffer; which of them are the model's own, its pool knows. `scratch` is the page that padding
    writes to.
    """

    def __init__(self, buffer: torch.Tensor, layout: KVLayout, scratch: int) -> None:
        self.layout = layout
        self.scratch = scratch
        self._view(buffer)

    def close(self) -> None:
        """Lets go of the buffer, whoever still holds the cache."""
        self._view(torch.empty(0, dtype=torch.uint8))

    def _view(self, buffer: torch.Tensor) -> None:
        layout = self.layout
        count = buffer.numel() // layout.row_bytes
        used = buffer[: count * layout.row_bytes]
        size, heads, dim = layout.page_size, layout.kv_heads, layout.head_dim
        if layout.kv_type is None:
            self.rows = KVRows.plain(used.view(layout.dtype).view(count, size, 2, heads, dim))
        else:
            self.rows = KVRows.quantized(used.view(count, layout.row_bytes), layout.kv_type, size, heads, dim)
        # The same memory by tokens, for copies too small to be worth a call of torch.
        host = layout.kv_type is None and not buffer.is_cuda
        self._by_token = used.numpy().reshape(count, size, layout.row_bytes // size) if host else None

    def copy_page(self, source: int, target: int, tokens: int) -> None:
        """Copies the first `tokens` of one page, or all of it, in every layer (copy-on-write)."""
        layers, data = self.layout.layers, self._by_token
        if data is not None:
            data[target : target + layers, :tokens] = data[source : source + layers, :tokens]
        else:
            self.rows.data[target : target + layers] = self.rows.data[source : source + layers]

    def copy_token(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        """Copies keys and values of one token, from a page and place to another, in every layer."""
        layers, (old, old_place), (new, new_place) = self.layout.layers, source, target
        for part in self.rows.split():
            part[new : new + layers, new_place] = part[old : old + layers, old_place]
