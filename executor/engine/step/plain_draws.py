"""Decode steps whose samples ask for their next token and nothing else, in arrays, without an object a row.

Most steps are such. What follows from a batch alone is kept until a sample joins or leaves.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np

from qpdsl.executor.engine.memory.sequence import Chunk, Sequence, are_draws
from qpdsl.executor.engine.step.sampler import noise_arrays
from qpdsl.executor.engine.step.token_head import HeadDraws
from qpdsl.executor.requests.request import GenerateRequest


class PlainDraws:
    """Makes the draws of plain steps; `samples` are those of the last one."""

    def __init__(self) -> None:
        self.samples: list[Sequence] = []
        self._draws: HeadDraws | None = None
        self._before: np.ndarray[tuple[int], np.dtype[np.int64]] = np.zeros(0, np.int64)

    def of(self, chunks: Several[Chunk]) -> HeadDraws | None:
        """A draw for each chunk, from the hidden state of its number; None where one is more, or asks for more."""
        samples = [chunk.sequence for chunk in chunks]
        if not are_draws(chunks):
            return None
        if samples != self.samples:
            if not all(map(is_plain, samples)):
                return None
            self.samples = samples
            self._draws, self._before = _lasting(samples)
        draws = self._draws
        assert draws is not None
        positions = self._before + np.array([len(sample.tokens) for sample in samples])
        return HeadDraws(
            *(draws.rows, draws.temperature, draws.keys, positions, draws.allowed, draws.sparse, None, draws.screened)
        )


def is_plain(sample: Sequence) -> bool:
    """Whether a sample asks for tokens that a head draws from all ids, and for nothing more of them."""
    request = sample.request.generation
    return request is not None and sample.forked and sample.mask is None and _draws_plainly(request)


def _draws_plainly(request: GenerateRequest) -> bool:
    sampling = request.sampling
    more = (request.exit, request.draft, request.route, request.confidence, request.contrast, request.rank)
    if any(part is not None for part in (*more, request.floor)) or request.figures:
        return False
    return not sampling.processors.adjusts and (sampling.greedy or not sampling.filtered)


def _lasting(samples: list[Sequence]) -> tuple[HeadDraws, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The draws of samples without their positions, and what the number of a sample's tokens lacks of its position."""
    requests = [sample.generation for sample in samples]
    count = len(samples)
    keys = [request.keys[sample.index] for request, sample in zip(requests, samples, strict=True)]
    temperatures, noise, positions = noise_arrays([request.sampling for request in requests], keys, [0] * count)
    screened = np.array([not request.logprobs for request in requests], dtype=np.bool_)
    draws = HeadDraws(
        np.arange(count),
        temperatures,
        noise,
        positions,
        np.full(count, -1, dtype=np.int64),
        np.zeros(count, dtype=np.bool_),
        None,
        screened,
    )
    before = [request.drawn - sample.prompt_length for request, sample in zip(requests, samples, strict=True)]
    return draws, np.array(before, dtype=np.int64)
