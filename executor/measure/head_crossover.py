"""From which share of the vocabulary on a dense head is quicker than one over a list of ids, on this device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from qpdsl.executor.engine.model.heads import LogitHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.requests.routing import Arm

# Shares of the panels that are listed, and how often each side is timed; the least time counts.
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
_TIMES = 3
# The ids of the widest panel; of a narrower one the share is less, which is no matter.
_WIDEST = 16


def head_crossover(model: PagedModel, clock: Callable[[], float]) -> float | None:
    """The largest of a few shares of the head at which a list of panels, spread evenly, takes no longer than all.

    Below the last of them where it takes longer at each: half of that. None where the head is not compiled. `clock`
    gives seconds.
    """
    head = model.panel_head
    if head is None or model.kernels or not isinstance(model.head, LogitHead):
        return None
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, model.head.in_features, generator=generator)
    zeros = np.zeros(1, dtype=np.int64)

    def seconds(arm: Arm, bits: np.ndarray[tuple[int, int], np.dtype[np.int32]]) -> float:
        start = clock()
        head(hidden, zeros, np.ones(1, np.float32), zeros, zeros, zeros, np.ones(1, np.bool_), bits, arm)
        return clock() - start

    for share in _SHARES:
        bits = _masked(model.vocabulary, share)
        pairs = [(seconds("rows", bits), seconds("dense", bits)) for _ in range(_TIMES + 1)][1:]
        listed, dense = (min(side) for side in zip(*pairs, strict=True))
        if listed <= dense:
            return share
    return _SHARES[-1] / 2


def _masked(vocabulary: int, share: float) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Bits int32 [1, ⌈V/32⌉] of a mask that allows one id in this share of all groups of neighbours."""
    groups = -(-vocabulary // _WIDEST)
    chosen = np.linspace(0, groups - 1, max(1, round(share * groups))).astype(np.int64)
    allowed = np.zeros(-(-vocabulary // 32) * 32, dtype=np.bool_)
    allowed[chosen * _WIDEST] = True
    return np.packbits(allowed, bitorder="little").view(np.int32)[None, :]
