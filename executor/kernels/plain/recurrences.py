"""Recurrences over the segments of a step, in torch: the twins of `llvm/recurrence.py`. See `kernels/recurrences.py`.

Tokens are taken one by one, or all at once where each number of the result is computed by itself, so that a token's
bits do not depend on how a text is cut into segments.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.functional import silu

from qpdsl.executor.kernels.data.states import FRESH, StateSegment


def convolved(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activated: bool,
    kept: torch.Tensor,
    segments: Iterable[StateSegment],
) -> torch.Tensor:
    """As `ShortConvolution`; `weight` float32 [K, C], `bias` float32 [C], `kept` [blocks, K - 1, C]."""
    out = torch.zeros_like(rows)
    taps = weight.shape[0]
    for source, target, first, count in segments:
        before = torch.zeros_like(kept[target]) if source == FRESH else kept[source]
        inputs = torch.cat((before, rows[first : first + count]))
        wide = inputs.float()
        total = wide[:count] * weight[0]
        for tap in range(1, taps):
            total = total + wide[tap : tap + count] * weight[tap]
        if bias is not None:
            total = total + bias
        out[first : first + count] = silu(total) if activated else total
        kept[target] = inputs[count:]
    return out
