"""Sampling by a kernel: what `sampler.sample` draws, with nothing that waits for a device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from qpdsl.executor.engine.request import SamplingParams
from qpdsl.executor.engine.sampler import NEAR_TIE_GAP, Draw, cuts, filtered_scores
from qpdsl.executor.engine.staging import Numbers, Staging

# Logits float32 [B, V], temperature float32 [B], 0 where the largest logit wins, keys and positions int64 [B]: to
# tokens int64, log-probabilities at temperature 1 and gaps to the runner-up float32 [B].
Kernel = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]
]


class KernelSampler:
    """Draws by a kernel where the logits are; rows with filters are cut in torch before it."""

    def __init__(self, staging: Staging, kernel: Kernel) -> None:
        self._staging = staging
        self._kernel = kernel

    def __call__(
        self, logits: torch.Tensor, params: list[SamplingParams], keys: list[int], positions: list[int]
    ) -> Draw:
        """See `sampler.sample`."""
        rows = [row for row, p in enumerate(params) if p.filtered and not p.greedy]
        arrays: list[Numbers] = [
            np.array([0.0 if p.greedy else p.temperature for p in params], dtype=np.float32),
            np.array(keys, dtype=np.uint64).view(np.int64),
            np.array(positions, dtype=np.int64),
        ]
        if rows:
            arrays += [np.array(rows, dtype=np.int64), *cuts([params[row] for row in rows], logits.shape[-1])]
        temperature, key, position, *cut = self._staging.send(arrays)
        if not cut:
            tokens, logprobs, gaps = self._kernel(logits, temperature, key, position)
            return Draw(tokens, logprobs, gaps < NEAR_TIE_GAP)
        index, *bounds = cut
        raw = logits.index_select(0, index)
        kept, near_cut = filtered_scores(raw / temperature.index_select(0, index)[:, None], *bounds)
        scores = logits.index_copy(0, index, kept)
        tokens, logprobs, gaps = self._kernel(scores, temperature.index_fill(0, index, 1.0), key, position)
        near = gaps < NEAR_TIE_GAP
        near.index_copy_(0, index, near.index_select(0, index) | near_cut)
        # In double, so that how the sum is parted among threads does not show.
        wide = raw.double()
        chosen = wide.gather(1, tokens.index_select(0, index)[:, None])[:, 0]
        logprobs.index_copy_(0, index, (chosen - wide.logsumexp(dim=-1)).float())
        return Draw(tokens, logprobs, near)
