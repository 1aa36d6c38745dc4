"""Contrastive decoding: logits against those that a smaller model has at the same place (see `LogitContrast`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from qpdsl.executor.engine.step.adjustments import adjusted, columns_of
from qpdsl.executor.engine.step.draws import Draw
from qpdsl.executor.engine.step.sampler import NEAR_TIE_GAP


def contrast_arrays(draws: Sequence[Draw], width: int) -> list[np.ndarray[Any, Any]]:
    """What `contrasted` is given of the draws of a batch; nothing where none has a contrast.

    Of those that do the row int64 [K], the smaller model's logits float32 [K, V], -inf where it lacks an id, ln alpha
    and beta float32 [K], and then what the rows' own tokens do to these logits (see `columns_of`), if anything.
    """
    there = [(row, draw) for row, draw in enumerate(draws) if draw.contrast is not None]
    if not there:
        return []
    smaller = np.full((len(there), width), -np.inf, dtype=np.float32)
    bounds = np.zeros((2, len(there)), dtype=np.float32)
    for index, (_, draw) in enumerate(there):
        own = draw.contrast
        assert own is not None
        known = own.smaller[:width]
        smaller[index, : len(known)] = known
        bounds[:, index] = math.log(own.alpha) if own.alpha else -math.inf, own.beta
    adjustments = [draw.adjustment for _, draw in there]
    columns = columns_of(adjustments) if any(own is not None for own in adjustments) else []
    return [np.array([row for row, _ in there]), smaller, *bounds, *columns]


def contrasted(logits: torch.Tensor, arrays: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits float32 [B, V] that are drawn from, of masked and adjusted ones; -inf where an id is not plausible.

    The second result, bool [B], is true where an id is so close to being plausible that rounding could have decided it.
    """
    rows, smaller, least, beta, *columns = arrays
    if columns:
        smaller = adjusted(smaller, columns)
    # An id that the smaller model lacks is none at all.
    own = logits.index_select(0, rows).masked_fill(smaller == float("-inf"), float("-inf"))
    most = own.amax(dim=-1, keepdim=True)
    cut = most + least[:, None]
    # Step by step: a fused multiply-add would round otherwise, and not on every device.
    apart = beta[:, None] * (own - smaller)
    values = torch.where((own >= cut) & (own > float("-inf")), own + apart, float("-inf"))
    near = (((own - cut).abs() < NEAR_TIE_GAP) & (own < most)).any(dim=-1)
    none_near = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    return logits.index_copy(0, rows, values), none_near.index_copy(0, rows, near)
