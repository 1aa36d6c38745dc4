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
from qpdsl.executor.kernels.data.token_draws import Drawn, HeadWeights, TokenDraws
from qpdsl.executor.requests.request import Bits

# The sparse head serves a draw that allows at most one id in so many: it reads the weights of those alone, but each
# draw reads its own, and the host lists them. Not measured on a GPU: `python -m benchmarks.gpu.run --only heads`.
_SPARSE_ONE_IN = 32

_Ints = np.ndarray[Any, np.dtype[np.int64]]
_Ids = np.ndarray[Any, np.dtype[np.int32]]
# Hidden states to what some of the draws come to.
_Way = Callable[[torch.Tensor], Drawn]


class DeviceHead:
    """A `TokenHead` that never waits for the device.

    Each draw goes to the sparse head where its own ids are few, else to the dense one: so which one it is does not
    depend on the batch. `deterministic`: nor do the bits of either.
    """

    def __init__(self, weights: HeadWeights, staging: Staging, deterministic: bool) -> None:
        self._weights = weights
        self._staging = staging
        self._deterministic = deterministic
        self._most = weights.weight.shape[0] // _SPARSE_ONE_IN

    def __call__(self, hidden: torch.Tensor, draws: HeadDraws) -> SampledTokens:
        parcel = Parcel(self._staging)
        drawn = self.planned(draws, parcel)
        parcel.send()
        return drawn(hidden)

    def planned(self, draws: HeadDraws, parcel: Parcel) -> Callable[[torch.Tensor], SampledTokens]:
        """What draws from hidden states once the parcel was sent."""
        few = np.zeros(len(draws.rows), dtype=np.bool_)
        if draws.masks is not None:
            few = draws.sparse & (draws.allowed >= 0) & (draws.masks.counts[draws.allowed] <= self._most)
        (listed,), (others,) = few.nonzero(), (~few).nonzero()
        ways = [self._sparse(draws, listed, parcel)] if len(listed) else []
        ways += [self._dense(draws, others, parcel)] if len(others) else []
        # Where each draw lies after both are joined.
        places = parcel.add([np.argsort(np.concatenate((listed, others)))] if len(ways) > 1 else [])

        def drawn(hidden: torch.Tensor) -> SampledTokens:
            rows = hidden if hidden.stride(-1) == 1 else hidden.contiguous()
            parts = [way(rows) for way in ways]
            joined = parts[0]
            if len(parts) > 1:
                (order,) = places()
                tokens, logprobs, gaps = (torch.cat(pair).index_select(0, order) for pair in zip(*parts, strict=True))
                joined = tokens, logprobs, gaps
            tokens, logprobs, gaps = joined
            return SampledTokens(tokens, logprobs, gaps < NEAR_TIE_GAP)

        return drawn

    def with_margins(self, hidden: torch.Tensor, draws: HeadDraws) -> None:
        """See `TokenHead`. The kernels tell no margins."""

    def _dense(self, draws: HeadDraws, chosen: _Ints, parcel: Parcel) -> _Way:
        """The draws `chosen`, over all ids."""
        arrays = _numbers(draws, chosen)
        if draws.masks is not None and (draws.allowed[chosen] >= 0).any():
            arrays += lines_of(draws.allowed[chosen], draws.masks.bits)
        sent = parcel.add(arrays)

        def drawn(hidden: torch.Tensor) -> Drawn:
            rows, temperatures, keys, positions, *mask = sent()
            bits, lines = mask or (None, None)
            made = TokenDraws(rows, temperatures, keys, positions)
            return layers.dense(hidden, self._weights, made, bits, lines, self._deterministic)

        return drawn

    def _sparse(self, draws: HeadDraws, chosen: _Ints, parcel: Parcel) -> _Way:
        """The draws `chosen`, each over its own ids."""
        assert draws.masks is not None
        masked, lines = np.unique(draws.allowed[chosen], return_inverse=True)
        lists = allowed_ids(draws.masks.bits[masked], self._weights.weight.shape[0])
        lengths = np.array([len(ids) for ids in lists], dtype=np.int32)[lines]
        arrays = _numbers(draws, chosen)
        arrays += [np.append(0, lengths.cumsum()).astype(np.int32), np.concatenate([lists[line] for line in lines])]
        sent, longest = parcel.add(arrays), int(lengths.max())

        def drawn(hidden: torch.Tensor) -> Drawn:
            rows, temperatures, keys, positions, offsets, ids = sent()
            made = TokenDraws(rows, temperatures, keys, positions)
            return layers.sparse(hidden, self._weights, made, offsets, ids, longest)

        return drawn


def lines_of(allowed: _Ints, bits: Bits) -> list[Numbers]:
    """The lines of bits that draws use, each once, and int32 [D] which of them each draw has, -1 for none.

    `allowed`: as in `HeadDraws`; one draw at least is masked.
    """
    masked, line = np.unique(allowed, return_inverse=True)
    # Draws that are not masked come first.
    free = int((masked < 0).sum())
    return [bits[masked[free:]], (line - free).astype(np.int32)]


def allowed_ids(bits: Bits, vocabulary: int) -> list[_Ids]:
    """The ids int32, ascending, of each line of bits [L, ⌈vocabulary / 32⌉]; most words are taken to be empty."""
    line, word = bits.nonzero()
    some, bit = ((bits[line, word][:, None] >> np.arange(32, dtype=np.int32)) & 1).nonzero()
    line, ids = line[some], (word[some] * 32 + bit).astype(np.int32)
    line, ids = line[ids < vocabulary], ids[ids < vocabulary]
    return np.split(ids, np.searchsorted(line, np.arange(1, len(bits))))


def _numbers(draws: HeadDraws, chosen: _Ints) -> list[Numbers]:
    return [
        draws.rows[chosen].astype(np.int32),
        draws.temperature[chosen],
        draws.keys[chosen],
        draws.positions[chosen],
    ]
