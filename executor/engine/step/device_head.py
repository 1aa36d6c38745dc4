"""The head by kernels of a device, or by their torch twins, as the step calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qpdsl.executor.engine.batch.staging import Numbers, Parcel, Staging
from qpdsl.executor.engine.step.sampler import NEAR_TIE_GAP, SampledTokens
from qpdsl.executor.engine.step.token_head import HeadDraws
from qpdsl.executor.kernels import layers
from qpdsl.executor.kernels.data.token_draws import HeadWeights, TokenDraws
from qpdsl.executor.requests.request import Bits

_Ints = np.ndarray[Any, np.dtype[np.int64]]


class DeviceHead:
    """A `TokenHead` that never waits for the device.

    It computes all ids: under a mask, the tiles of which some draw allows one. `deterministic`: a draw's bits depend on
    its own hidden state and mask alone.
    """

    def __init__(self, weights: HeadWeights, staging: Staging, deterministic: bool) -> None:
        self._weights = weights
        self._staging = staging
        self._deterministic = deterministic

    def __call__(self, hidden: torch.Tensor, draws: HeadDraws) -> SampledTokens:
        parcel = Parcel(self._staging)
        drawn = self.planned(draws, parcel)
        parcel.send()
        return drawn(hidden)

    def planned(self, draws: HeadDraws, parcel: Parcel) -> Callable[[torch.Tensor], SampledTokens]:
        """What draws from hidden states once the parcel was sent."""
        arrays: list[Numbers] = [draws.rows.astype(np.int32), draws.temperature, draws.keys, draws.positions]
        if draws.masks is not None:
            arrays += lines_of(draws.allowed, draws.masks.bits)
        sent = parcel.add(arrays)

        def drawn(hidden: torch.Tensor) -> SampledTokens:
            rows, temperatures, keys, positions, *mask = sent()
            bits, lines = mask or (None, None)
            made = TokenDraws(rows, temperatures, keys, positions)
            states = hidden if hidden.stride(-1) == 1 else hidden.contiguous()
            tokens, logprobs, gaps = layers.dense(states, self._weights, made, bits, lines, self._deterministic)
            return SampledTokens(tokens, logprobs, gaps < NEAR_TIE_GAP)

        return drawn

    def with_margins(self, hidden: torch.Tensor, draws: HeadDraws) -> None:
        """See `TokenHead`. The kernels tell no margins."""


def lines_of(allowed: _Ints, bits: Bits) -> list[Numbers]:
    """The lines of bits that draws use, each once, and int32 [D] which of them each draw has, -1 for none.

    `allowed`: as in `HeadDraws`; one draw at least is masked.
    """
    masked, line = np.unique(allowed, return_inverse=True)
    # Draws that are not masked come first.
    free = int((masked < 0).sum())
    return [bits[masked[free:]], (line - free).astype(np.int32)]
