"""Keys and values in eight bits: int8 or e4m3, with one float32 scale for each token and head.

The scale maps the largest magnitude of a head's vector to the largest number of the format (as in KVQuant, Hooper et
al., NeurIPS 2024, section 3, and vLLM's per-head scales; a scale per token needs no calibration and no second pass).

MERGED: How one model's KV cache lies in memory: rows, each one page of one layer.

A page is `layers` consecutive rows; its id is the index of its first, so layer l of page p is row p + l.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Kind = Literal["plain", "int8", "fp8"]


@dataclass(frozen=True, slots=True)
class Rows:
    """A model's view of the arena. Build it with `plain` or `quantized`.

    data:    plain: [R, page_size, 2, KV, D] of the model's dtype (0: key, 1: value); quantized: uint8 [R, bytes a row],
             the int8 or e4m3 data [page_size, 2, KV, D] first, then float32 scales [page_size, 2, KV]
    scales:  the same memory as float32 [R, bytes a row / 4]; of plain rows `data` itself, which nobody reads as scales
    kind:    what an element is
    """

    data: torch.Tensor
    scales: torch.Tensor
    page_size: int
    kv_heads: int
    dim: int
    kind: Kind

    @classmethod
    def plain(cls, data: torch.Tensor) -> Rows:
        """Rows [R, page_size, 2, KV, D] in float32, bfloat16 or float16. Raises ValueError for another shape."""
        if data.dim() != 5 or data.shape[2] != 2 or not data.is_contiguous():
            raise ValueError(f"rows are contiguous [R, page_size, 2, KV, D], not {list(data.shape)}")
        return cls(data, data, data.shape[1], data.shape[3], data.shape[4], "plain")

    @classmethod
    def quantized(cls, data: torch.Tensor, kind: Kind, page_size: int, kv_heads: int, dim: int) -> Rows:
        """Rows uint8 [R, row_bytes(...)]. Raises ValueError for another size or a row that float32 cannot divide."""
        values, scales = page_size * 2 * kv_heads * dim, page_size * 2 * kv_heads * 4
        if data.dim() != 2 or data.shape[1] != values + scales or not data.is_contiguous() or values % 4:
            raise ValueError(f"a row of {kind} is {values} + {scales} bytes, not {list(data.shape[1:])}")
        return cls(data, data.view(torch.float32), page_size, kv_heads, dim, kind)

    @property
    def row_elements(self) -> int:
        """Elements of `data` from one row to the next."""
        return self.data.stride(0)

    def split(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantized rows as views: data uint8 [R, page_size, 2, KV, D] and scales float32 [R, page_size, 2, KV]."""
        shape = (self.data.shape[0], self.page_size, 2, self.kv_heads, self.dim)
        values = self.page_size * 2 * self.kv_heads * self.dim
        return self.data[:, :values].view(shape), self.scales[:, values // 4 :].view(shape[:4])


def row_bytes(kind: Kind, dtype: torch.dtype, page_size: int, kv_heads: int, dim: int) -> int:
    """Bytes of one row. `dtype` counts for plain rows only."""
    heads = page_size * 2 * kv_heads
    return heads * dim * dtype.itemsize if kind == "plain" else heads * (dim + 4)


# The largest magnitudes. e4m3 has no infinity; 448 is its largest finite number.
LARGEST = {"int8": 127.0, "fp8": 448.0}
# Below this a vector is taken for zero: the reciprocal of its scale would overflow.
SMALLEST = 1e-30


def encode(values: torch.Tensor, kind: Kind) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes `values` [..., D]: bytes uint8 [..., D] and scales float32 [...], rounding half to even."""
    wide = values.float()
    largest = wide.abs().amax(dim=-1)
    zero = largest < SMALLEST
    safe = torch.where(zero, torch.ones_like(largest), largest)
    # Tensors, both: with a number on one side torch may multiply by a reciprocal, which rounds twice.
    bound = torch.full_like(safe, LARGEST[kind])
    scale = torch.where(zero, torch.zeros_like(largest), safe / bound)
    inverse = torch.where(zero, torch.zeros_like(largest), bound / safe)
    scaled = (wide * inverse[..., None]).clamp(-LARGEST[kind], LARGEST[kind])
    if kind == "int8":
        return scaled.round().to(torch.int8).view(torch.uint8), scale
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8), scale


def decode(data: torch.Tensor, scale: torch.Tensor, kind: Kind) -> torch.Tensor:
    """What `encode` stored, as float32 [..., D]."""
    wide = data.view(torch.int8 if kind == "int8" else torch.float8_e4m3fn).float()
    return wide * scale[..., None]
