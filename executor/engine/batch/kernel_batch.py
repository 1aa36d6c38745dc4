"""One forward as the attention kernels read it: views of one array of numbers on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.kernels import packed, paged_attention
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.packed import Sizes


@dataclass(frozen=True, slots=True)
class KernelBatch:
    """`numbers` int32 on the device holds the step as `sizes` lays it out; the rest are views of it.

    `read_rows` int32 [W]: the rows whose hidden state is read, None for all. `host_sizes` int64 on the host: `sizes`,
    for compiled layers. `deterministic`: a row's bits must not depend on the others.
    """

    numbers: torch.Tensor
    sizes: Sizes
    host_sizes: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor
    read_rows: torch.Tensor | None
    paged: PagedBatch
    deterministic: bool = False

    @classmethod
    def of(cls, numbers: torch.Tensor, sizes: Sizes, deterministic: bool = False) -> KernelBatch:
        """The views of `numbers`, laid out as `sizes` says."""
        tokens, positions, rows, batch = packed.unpack(numbers, sizes)
        read_rows = rows if sizes.wanted else None
        return cls(numbers, sizes, torch.tensor(sizes), tokens, positions, read_rows, batch, deterministic)

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
        return paged_attention.attend(query, key, value, cache.rows, self.paged, layer, scoring, self.deterministic)
