"""One forward as the attention kernels see it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qpdsl.executor.engine.kv import KVCache
from qpdsl.executor.kernels import packed, paged
from qpdsl.executor.kernels.metadata import PagedBatch, Scoring
from qpdsl.executor.kernels.packed import Sizes


@dataclass(frozen=True, slots=True)
class KernelBatch:
    """`numbers` int32 on the device holds the step as `sizes` lays it out; the rest are views of it.

    `wanted` int32 [W]: the rows whose hidden state is read, None for all. `host_sizes` int64 on the host, `sizes` for
    compiled layers. `deterministic`: a row's bits must not depend on the others.
    """

    numbers: torch.Tensor
    sizes: Sizes
    host_sizes: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor
    wanted: torch.Tensor | None
    paged: PagedBatch
    deterministic: bool = False

    @classmethod
    def of(cls, numbers: torch.Tensor, sizes: Sizes, deterministic: bool = False) -> KernelBatch:
        tokens, positions, wanted, batch = packed.unpack(numbers, sizes)
        rows = wanted if sizes.wanted else None
        return cls(numbers, sizes, torch.tensor(sizes), tokens, positions, rows, batch, deterministic)

    def attend(
        self,
        cache: KVCache,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: int,
        scoring: Scoring,
    ) -> torch.Tensor:
        """A layer's attention of `query` [T, H, D]; `key` and `value` [T, KV, D] are stored before it."""
        if torch.compiler.is_compiling():
            return packed.attend(
                query, key, value, cache.rows, self.numbers, self.host_sizes, layer, scoring, self.deterministic
            )
        return paged.attend(query, key, value, cache.rows, self.paged, layer, scoring, self.deterministic)
