"""The steps of a model that take most memory: what is left beside them may hold keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np

from qpdsl.executor.engine.model.heads import LogitHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.requests.drawing import Confidence, LogitContrast
from qpdsl.executor.requests.request import (
    Bits,
    GenerateRequest,
    LogProbRequest,
    ReadRequest,
    Request,
    SamplingParams,
)


def largest_requests(model: PagedModel, sequences: int, tokens: int) -> list[list[Request]]:
    """For each of some steps the requests that make it one of `tokens` tokens.

    In the first, where the model has a vocabulary, `sequences` samples are drawn with all that makes a draw look at the
    logits of all ids: filters, a mask, an entropy, figures, a contrast. In the others every token is read.
    """
    length = min(tokens, model.max_positions - 1)
    prompts = -(-tokens // length)
    texts = [(number % model.vocabulary,) * length for number in range(prompts)]
    if not isinstance(model.head, LogitHead):
        return [[ReadRequest(text, tuple(range(length)), (0,), cached=False) for text in texts]]
    sampling = SamplingParams(top_k=max(1, model.vocabulary // 2), top_p=0.5, min_p=1e-6)
    # Any draw stands by it.
    sure = Confidence("entropy", threshold=-1.0)
    contrast = LogitContrast(np.zeros(model.head.width, np.float32), alpha=0.0, beta=1.0)
    shares = [range(number, sequences, prompts) or range(1) for number in range(prompts)]
    draws: list[Request] = [
        GenerateRequest(
            *(text, tuple(keys), sampling, 1),
            mask=AnyToken,
            confidence=sure,
            figures=True,
            contrast=contrast,
            cached=False,
        )
        for text, keys in zip(texts, shares, strict=True)
    ]
    reads: list[Request] = [LogProbRequest(text[:1], text, cached=False) for text in texts]
    return [draws, reads]


def memory_of(model: PagedModel, requests: Iterable[Request], more: int = 0) -> int:
    """Bytes of keys, values and states with which such requests can run at once, each with `more` tokens in the end."""
    page = model.layout.page_size
    size = model.layout.page_bytes
    for request in requests:
        size += ((len(request.tokens) + more) // page + 2) * model.layout.page_bytes
        if model.states is not None:
            # Each sample has one, its prompt some, and steps between two of its own another.
            size += (2 * request.samples + 4) * model.states.block_bytes
    return size


class AnyToken:
    """A `Mask` that allows every token."""

    error: str | None = None

    def push(self, token: int) -> bool:
        """See `Mask`."""
        return False

    def fork(self) -> Self:
        """See `Mask`."""
        return self

    def forced(self) -> list[int]:
        """See `Mask`."""
        return []

    def admits(self, tokens: Sequence[int]) -> int:
        """See `Mask`."""
        return len(tokens)

    def fill(self, masks: Sequence[Self], bits: Bits) -> None:
        """See `Mask`."""
        bits[:] = -1

    def fill_ahead(self, masks: Sequence[Self], paths: Sequence[Sequence[Sequence[int]]], bits: Bits) -> None:
        """See `Mask`."""
        bits[:] = -1
