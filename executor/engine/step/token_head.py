"""What draws tokens straight from hidden states, without logits of all ids in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from qpdsl.executor.engine.memory.sequence import Chunk, are_draws
from qpdsl.executor.engine.memory.sequence import Sequence as Sample
from qpdsl.executor.engine.step.draws import Draw, Masks, drawn_by
from qpdsl.executor.engine.step.sampler import SampledTokens, noise_arrays
from qpdsl.executor.requests.request import GenerateRequest
from qpdsl.executor.requests.routing import Routing

_Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class HeadDraws:
    """Draws without filters, as host arrays [D].

    rows:        int64, of the hidden states
    temperature: float32, 0 where the largest logit wins
    keys:        int64, the bits of the noise keys
    positions:   int64, how many tokens were drawn before under each key
    allowed:     int64, the row of the masks' bits, -1 where every id may come
    sparse:      bool, whether the head may compute the allowed ids alone: no result depends on it
    masks:       None where all of `allowed` is -1
    screened:    bool, whether the head may leave out ids that cannot win; a draw's log-probability then says nothing
    route:       who decides how they are computed, None where nobody does: no result depends on it
    """

    rows: _Ints
    temperature: np.ndarray[Any, np.dtype[np.float32]]
    keys: _Ints
    positions: _Ints
    allowed: _Ints
    sparse: np.ndarray[Any, np.dtype[np.bool_]]
    masks: Masks | None
    screened: np.ndarray[Any, np.dtype[np.bool_]]
    route: Routing | None = None

    @classmethod
    def of(cls, draws: Sequence[Draw], masks: Masks | None) -> HeadDraws:
        allowed = np.array([-1 if masks is None else draw.allowed for draw in draws], dtype=np.int64)
        temperatures, keys, positions = noise_arrays(*drawn_by(draws))
        return cls(
            np.array([draw.row for draw in draws], dtype=np.int64),
            temperatures,
            keys,
            positions,
            allowed,
            np.array([draw.sparse for draw in draws], dtype=np.bool_),
            masks if (allowed >= 0).any() else None,
            np.array([draw.screened for draw in draws], dtype=np.bool_),
            next((draw.route for draw in draws if draw.route is not None), None),
        )


class TokenHead(Protocol):
    """Hidden states [R, d] on the model's device to one token for each draw.

    Log-probabilities are at temperature 1, over the allowed ids; that of a screened draw is a number where its logits
    are, and says no more. A draw of which no id is allowed has some token, which nobody reads.
    """

    def __call__(self, hidden: torch.Tensor, draws: HeadDraws) -> SampledTokens: ...

    def with_margins(self, hidden: torch.Tensor, draws: HeadDraws) -> tuple[SampledTokens, torch.Tensor] | None:
        """The same, and how far apart the two largest probabilities of the allowed ids are at temperature 1.

        Margins are float64 [D]. None where the head does not tell them.
        """
        ...


class PlainDraws:
    """The draws of steps whose samples ask for their next token and nothing else, as most do: without an object a row.

    So do samples that are drafted for, in the steps without a proposal.

    What follows from the batch alone is kept until a sample joins or leaves; `samples` are those of the last such step.
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._draws: HeadDraws | None = None
        self._before: np.ndarray[tuple[int], np.dtype[np.int64]] = np.zeros(0, np.int64)

    def of(self, chunks: Sequence[Chunk]) -> HeadDraws | None:
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


def is_plain(sample: Sample) -> bool:
    """Whether a sample asks for tokens that a head draws from all ids, and for nothing more of them."""
    request = sample.request.generation
    return request is not None and sample.forked and sample.mask is None and _draws_plainly(request)


def _draws_plainly(request: GenerateRequest) -> bool:
    sampling = request.sampling
    more = (request.exit, request.route, request.confidence, request.contrast, request.rank)
    if any(part is not None for part in (*more, request.floor)) or request.figures:
        return False
    return not sampling.processors.adjusts and (sampling.greedy or not sampling.filtered)


def _lasting(samples: list[Sample]) -> tuple[HeadDraws, np.ndarray[tuple[int], np.dtype[np.int64]]]:
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
