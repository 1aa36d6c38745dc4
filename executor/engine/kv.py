"""The tensors behind the pages of one model."""

from __future__ import annotations

import math

import numpy as np
import torch


class KVCache:
    """Keys and values of all layers: per layer one tensor [pages, page_size, kv_heads, head_dim] for each."""

    def __init__(
        self, layers: int, pages: int, page_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: str
    ) -> None:
        # Zeros, not empty: a masked-out slot is multiplied by a zero weight, and zero times garbage can be NaN.
        shape = (layers, pages, page_size, kv_heads, head_dim)
        self.keys = _zeros(shape, dtype, device)
        self.values = _zeros(shape, dtype, device)
        self.page_size = page_size

    @staticmethod
    def page_bytes(layers: int, page_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes of one page over all layers, keys and values."""
        return 2 * layers * page_size * kv_heads * head_dim * dtype.itemsize

    def copy_page(self, source: int, target: int) -> None:
        """Copies one page in every layer (copy-on-write)."""
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    if device != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch writes its zeros, seconds for gigabytes; the operating system gives them page by page as they are touched.
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
