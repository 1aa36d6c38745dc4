"""Measures what keeping keys and values in eight bits does on a device: the error of the logits, and the steps' time.

The error is taken on texts that the model wrote itself, on tokens that mean nothing where it writes none: the most by
which any logit of any position looked at differs from that with keys and values as the model computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from qpdsl.executor.engine.kv import KVType
from qpdsl.executor.engine.request import ReadRequest
from qpdsl.executor.engine.value_head import ValueHead
from qpdsl.executor.runtime.loading import TextModel
from qpdsl.executor.runtime.trial import Clock, Trial, curve_of
from qpdsl.planner.device import KVProfile

KV_TYPES: tuple[KVType, ...] = ("int8", "fp8")
Again = Callable[[KVType], TextModel]
_TEXTS, _WRITTEN = 8, 96
# Logits that are looked at, all texts together.
_LOGITS = 2_000_000


def measure_kv(model: TextModel, again: Again, clock: Clock) -> dict[str, KVProfile]:
    """Of every type that keys and values can be kept in; none for a model that keeps them in one of these already.

    A type in which a logit is no finite number is left out: it is no way to keep them.
    `again` loads the model with its keys and values kept so. Raises ModelError.
    """
    if model.paged.layout.kv_type is not None:
        return {}
    trial = Trial(model, clock)
    texts = trial.written(_TEXTS, _WRITTEN)
    exact = _logits(trial, texts)
    found: dict[str, KVProfile] = {}
    for kv_type in KV_TYPES:
        other = Trial(again(kv_type), clock)
        errors = [abs(a - b) for a, b in zip(exact, _logits(other, texts), strict=True)]
        if not all(map(math.isfinite, errors)):
            continue
        other.decode(4)
        prefill, decode = other.prefills(), other.decodes()
        token_bytes = float(other.model.paged.layout.token_bytes)
        found[kv_type] = KVProfile(token_bytes, max(errors), curve_of(decode or prefill), curve_of(prefill))
    return found


def _logits(trial: Trial, texts: Sequence[tuple[int, ...]]) -> list[float]:
    """The logits at positions all over the texts, one after another."""
    head = trial.model.paged.head
    width = head.width if isinstance(head, ValueHead) else trial.model.paged.vocabulary
    each = max(1, min(_WRITTEN, _LOGITS // (width * len(texts))))
    values: list[float] = []
    for text in texts:
        step = max(len(text) // each, 1)
        values += trial.logits(ReadRequest(text, tuple(range(step - 1, len(text), step)), tuple(range(width))))
    return values
