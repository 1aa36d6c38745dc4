"""Sampling where the logits are: what `sampler.sample` draws, with nothing that waits for the device."""

from __future__ import annotations

import numpy as np
import torch

from qpdsl.executor.engine.request import SamplingParams
from qpdsl.executor.engine.sampler import NEAR_TIE_GAP, Draw, cuts, filtered_scores
from qpdsl.executor.engine.staging import Numbers, Staging


class DeviceSampler:
    """Draws by a kernel; rows with filters are cut in torch before it."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging

    def __call__(
        self, logits: torch.Tensor, params: list[SamplingParams], keys: list[int], positions: list[int]
    ) -> Draw:
        """See `sampler.sample`."""
        from qpdsl.executor.kernels import triton_sample

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
            tokens, logprobs, gaps = triton_sample.sample(logits, temperature, key, position)
            return Draw(tokens, logprobs, gaps < NEAR_TIE_GAP)
        index, *bounds = cut
        raw = logits.index_select(0, index)
        kept, near_cut = filtered_scores(raw / temperature.index_select(0, index)[:, None], *bounds)
        scores = logits.index_copy(0, index, kept)
        tokens, logprobs, gaps = triton_sample.sample(scores, temperature.index_fill(0, index, 1.0), key, position)
        near = gaps < NEAR_TIE_GAP
        near.index_copy_(0, index, near.index_select(0, index) | near_cut)
        # In double, so that how the sum is parted among threads does not show.
        wide = raw.double()
        chosen = wide.gather(1, tokens.index_select(0, index)[:, None])[:, 0]
        logprobs.index_copy_(0, index, (chosen - wide.logsumexp(dim=-1)).float())
        return Draw(tokens, logprobs, near)
