"""`via filter(…)`: the small model's token is taken where it is confident of it; elsewhere the large model draws.

Source: CALID, "confidence-aware LLM inference by filter decoding"; here a higher score means more
confidence.
"""

from __future__ import annotations

import math

from qpdsl.executor.engine.step.sampler import NEAR_CUT_PROBABILITY
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.request import Finish, GenerateRequest, LogProbRequest, Sample, SamplingParams
from qpdsl.executor.runtime.generate.continuation import Continuation
from qpdsl.executor.runtime.generate.sampling import Sampling
from qpdsl.executor.runtime.instance.tasks import together
from qpdsl.planner.plan import ops

_GREEDY = SamplingParams(0.0)


async def filter_samples(sampling: Sampling, continuations: list[Continuation]) -> list[tuple[Sample, ...]]:
    """The samples of each row, each drawn a token at a time; where prefixes are shared, those before it are cached."""
    instance, via = sampling.instance, sampling.op.via
    assert isinstance(via, ops.Filter)
    small = instance.services.models[via.model]
    threshold = instance.number("threshold", via.threshold) or 0.0
    for continuation in continuations:
        instance.usage.prompt_tokens += 2 * len(continuation.prompt)
    count = sampling.distinct
    samples = await together(
        _FilteredSample(sampling, small, threshold, continuation, index).sample()
        for continuation in continuations
        for index in range(count)
    )
    return [sampling.with_copies(tuple(samples[at : at + count])) for at in range(0, len(samples), count)]


class _FilteredSample:
    """One sample, drawn token by token."""

    def __init__(
        self, sampling: Sampling, small: TextModel, threshold: float, continuation: Continuation, index: int
    ) -> None:
        self._large, self._small = sampling.model, small
        self._threshold = threshold
        self._params = sampling.options.params
        self._shared = sampling.strategy.share
        self._continuation = continuation
        self._key = continuation.keys[index]
        self._watch = sampling.watch(continuation.paths, index) if sampling.watched else None
        self._engine = sampling.instance.services.engine
        self._tokens: tuple[int, ...] = ()
        self._near_ties = 0

    async def sample(self) -> Sample:
        finish: Finish | None = None
        while finish is None:
            token = await self._next()
            self._tokens += (token,)
            finish = self._finish(token)
        request = LogProbRequest(self._continuation.prompt, self._tokens, cached=self._shared)
        logprobs = (await self._engine.submit(self._large.name, request)).logprobs
        return Sample(self._tokens, finish, sum(logprobs), self._near_ties, self._watch, logprobs)

    async def _next(self) -> int:
        token, logprob, near = await self._drawn(self._small, 0, _GREEDY)
        confidence = math.exp(logprob)
        self._near_ties += abs(confidence - self._threshold) < NEAR_CUT_PROBABILITY
        if confidence < self._threshold:
            token, _, near = await self._drawn(self._large, self._key, self._params)
        self._near_ties += near
        return token

    async def _drawn(self, model: TextModel, key: int, params: SamplingParams) -> tuple[int, float, int]:
        prompt, drawn = self._continuation.prompt + self._tokens, len(self._tokens)
        request = GenerateRequest(prompt, (key,), params, 1, drawn=drawn, cached=self._shared)
        (sample,) = (await self._engine.submit(model.name, request)).samples
        return sample.tokens[0], sample.logprob, sample.near_ties

    def _finish(self, token: int) -> Finish | None:
        if token in self._large.eos:
            return "eos"
        if self._watch is not None and self._watch.push(token):
            return "stop"
        room = min(model.max_positions for model in (self._large, self._small)) - len(self._continuation.prompt)
        return "length" if len(self._tokens) >= min(self._continuation.limit, room) else None
