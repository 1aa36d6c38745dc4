"""The head by kernels of a device, or by their torch twins, as the step calls it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qpdsl.executor.engine.batch.staging import Numbers, Staging
from qpdsl.executor.engine.step.sampler import NEAR_TIE_GAP, SampledTokens
from qpdsl.executor.engine.step.token_head import HeadDraws
from qpdsl.executor.kernels import token_heads
from qpdsl.executor.kernels.data.token_draws import Drawn, HeadWeights, TokenDraws
from qpdsl.executor.requests.request import Bits

# The sparse head serves a draw that allows at most one id in so many: it reads the weights of those alone, but each
# draw reads its own, and the host lists them. Not measured on a GPU: `python -m benchmarks.gpu.run --only heads`.
_SPARSE_ONE_IN = 32

_Ints = np.ndarray[Any, np.dtype[np.int64]]
_Ids = np.ndarray[Any, np.dtype[np.int32]]


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
        few = np.zeros(len(draws.rows), dtype=np.bool_)
        if draws.masks is not None:
            few = draws.sparse & (draws.allowed >= 0) & (draws.masks.counts[draws.allowed] <= self._most)
        hidden = hidden if hidden.stride(-1) == 1 else hidden.contiguous()
        if not few.any():
            return _sampled(self._dense(hidden, draws, np.arange(len(few))))
        (listed,), (others,) = few.nonzero(), (~few).nonzero()
        if not len(others):
            return _sampled(self._sparse(hidden, draws, listed))
        sparse, dense = self._sparse(hidden, draws, listed), self._dense(hidden, draws, others)
        # Where each draw lies after both are joined.
        (places,) = self._staging.send([np.argsort(np.concatenate((listed, others)))])
        tokens, logprobs, gaps = (torch.cat(pair).index_select(0, places) for pair in zip(sparse, dense, strict=True))
        return _sampled((tokens, logprobs, gaps))

    def with_margins(self, hidden: torch.Tensor, draws: HeadDraws) -> None:
        """See `TokenHead`. The kernels tell no margins."""

    def _dense(self, hidden: torch.Tensor, draws: HeadDraws, chosen: _Ints) -> Drawn:
        """The draws `chosen`, over all ids."""
        arrays = _numbers(draws, chosen)
        masked, line = np.unique(draws.allowed[chosen], return_inverse=True)
        # Draws that are not masked come first.
        free = int((masked < 0).sum())
        if draws.masks is not None and free < len(masked):
            arrays += [draws.masks.bits[masked[free:]], (line - free).astype(np.int32)]
        rows, temperatures, keys, positions, *mask = self._staging.send(arrays)
        made = TokenDraws(rows, temperatures, keys, positions)
        bits, lines = mask or (None, None)
        return token_heads.dense(hidden, self._weights, made, bits, lines, self._deterministic)

    def _sparse(self, hidden: torch.Tensor, draws: HeadDraws, chosen: _Ints) -> Drawn:
        """The draws `chosen`, each over its own ids."""
        assert draws.masks is not None
        masked, lines = np.unique(draws.allowed[chosen], return_inverse=True)
        lists = allowed_ids(draws.masks.bits[masked], self._weights.weight.shape[0])
        lengths = np.array([len(ids) for ids in lists], dtype=np.int32)[lines]
        arrays = _numbers(draws, chosen)
        arrays += [np.append(0, lengths.cumsum()).astype(np.int32), np.concatenate([lists[line] for line in lines])]
        rows, temperatures, keys, positions, offsets, ids = self._staging.send(arrays)
        made = TokenDraws(rows, temperatures, keys, positions)
        return token_heads.sparse(hidden, self._weights, made, offsets, ids, int(lengths.max()))


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


def _sampled(drawn: Drawn) -> SampledTokens:
    tokens, logprobs, gaps = drawn
    return SampledTokens(tokens, logprobs, gaps < NEAR_TIE_GAP)
