"""Penalties and biases: logits that a row's own tokens change before it draws (see `LogitProcessors`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from qpdsl.executor.requests.request import GenerateRequest

_Ints = np.ndarray[Any, np.dtype[np.int64]]
_Floats = np.ndarray[Any, np.dtype[np.float32]]
# Prompts whose ids are remembered: those that samples of a batch go on from.
_PROMPTS = 256


class Adjustment(NamedTuple):
    """Of some ids int64 [K]: what is added to the logit, by what it is then scaled, what is then taken: float32 [K]."""

    ids: _Ints
    bias: _Floats
    scale: _Floats
    less: _Floats


def adjustment_of(request: GenerateRequest, tokens: Sequence[int]) -> Adjustment | None:
    """What a request does to the logits behind `tokens` of a sample of it; None where it does nothing to them."""
    processors = request.sampling.processors
    if not processors.adjusts:
        return None
    drawn = (*request.prompt[len(request.prompt) - request.drawn :], *tokens)
    own, times = np.unique(np.array(drawn, dtype=np.int64), return_counts=True)
    repeated = own[:0] if processors.repetition == 1 else np.union1d(own, _ids(request.prompt))
    counted = own if processors.presence or processors.frequency else own[:0]
    biased = np.array([id for id, _ in processors.bias], dtype=np.int64)
    ids = np.union1d(np.union1d(repeated, counted), biased)
    if not len(ids):
        return None
    bias, scale, less = np.zeros(len(ids)), np.ones(len(ids)), np.zeros(len(ids))
    bias[np.searchsorted(ids, biased)] = [value for _, value in processors.bias]
    scale[np.searchsorted(ids, repeated)] = processors.repetition
    if len(counted):
        less[np.searchsorted(ids, counted)] = processors.frequency * times + processors.presence
    return Adjustment(ids, *(column.astype(np.float32) for column in (bias, scale, less)))


def columns_of(adjustments: Sequence[Adjustment | None]) -> list[np.ndarray[Any, Any]]:
    """What `adjusted` is given of the draws of a batch: for each changed logit its row, and what `Adjustment` has."""
    there = [(row, own) for row, own in enumerate(adjustments) if own is not None]
    rows = np.concatenate([np.full(len(own.ids), row, dtype=np.int64) for row, own in there])
    return [rows, *(np.concatenate([own[column] for _, own in there]) for column in range(4))]


def adjusted(logits: torch.Tensor, columns: Sequence[torch.Tensor]) -> torch.Tensor:
    """Logits float32 [B, V] as they are drawn from. What was passed is changed."""
    rows, ids, bias, scale, less = columns
    values = logits[rows, ids] + bias
    values = torch.where(values > 0, values / scale, values * scale) - less
    return logits.index_put_((rows, ids), values)


@lru_cache(maxsize=_PROMPTS)
def _ids(prompt: tuple[int, ...]) -> _Ints:
    return np.unique(np.array(prompt, dtype=np.int64))
