"""`via filter(…)`: the small model's token stands where it is sure of it, else the large model draws.

Source: CALID, "confidence-aware LLM inference by filter decoding"; the score is turned so that higher is surer.
"""

from __future__ import annotations

import math

from qpdsl.executor.engine.step.sampler import NEAR_CUT_PROBABILITY
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.request import Finish, GenerateRequest, LogProbRequest, Sample, SamplingParams
from qpdsl.executor.runtime.generate.continuation import Going
from qpdsl.executor.runtime.generate.sampling import Drawing
from qpdsl.executor.runtime.instance.tasks import together
from qpdsl.planner.plan import ops

_GREEDY = SamplingParams(0.0)


async def filtered(via: ops.Filter, drawing: Drawing, going: list[Going]) -> list[tuple[Sample, ...]]:
    """The samples of each row, each drawn a token at a time; where prefixes are shared, those before it are cached."""
    instance = drawing.instance
    small = instance.services.models[via.model]
    threshold = instance.number("threshold", via.threshold) or 0.0
    for each in going:
        instance.usage.prompt_tokens += 2 * len(each.prompt)
    count = drawing.distinct
    samples = await together(
        _Walk(drawing, small, threshold, each, index).sample() for each in going for index in range(count)
    )
    return [drawing.copied(tuple(samples[at : at + count])) for at in range(0, len(samples), count)]


class _Walk:
    """One sample on its way."""

    def __init__(self, drawing: Drawing, small: TextModel, threshold: float, going: Going, index: int) -> None:
        self._large, self._small = drawing.model, small
        self._threshold = threshold
        self._sampling = drawing.options.sampling
        self._shared = drawing.strategy.share
        self._going = going
        self._key = going.keys[index]
        self._watch = drawing.watch(going.paths, index) if drawing.watched else None
        self._engine = drawing.instance.services.engine
        self._tokens: tuple[int, ...] = ()
        self._near_ties = 0

    async def sample(self) -> Sample:
        finish: Finish | None = None
        while finish is None:
            token = await self._next()
            self._tokens += (token,)
            finish = self._finish(token)
        request = LogProbRequest(self._going.prompt, self._tokens, cached=self._shared)
        logprobs = (await self._engine.submit(self._large.name, request)).logprobs
        return Sample(self._tokens, finish, sum(logprobs), self._near_ties, self._watch, logprobs)

    async def _next(self) -> int:
        token, logprob, near = await self._drawn(self._small, 0, _GREEDY)
        confidence = math.exp(logprob)
        self._near_ties += abs(confidence - self._threshold) < NEAR_CUT_PROBABILITY
        if confidence < self._threshold:
            token, _, near = await self._drawn(self._large, self._key, self._sampling)
        self._near_ties += near
        return token

    async def _drawn(self, model: TextModel, key: int, sampling: SamplingParams) -> tuple[int, float, int]:
        prompt, drawn = self._going.prompt + self._tokens, len(self._tokens)
        request = GenerateRequest(prompt, (key,), sampling, 1, drawn=drawn, cached=self._shared)
        (sample,) = (await self._engine.submit(model.name, request)).samples
        return sample.tokens[0], sample.logprob, sample.near_ties

    def _finish(self, token: int) -> Finish | None:
        if token in self._large.eos:
            return "eos"
        if self._watch is not None and self._watch.push(token):
            return "stop"
        room = min(model.paged.max_positions for model in (self._large, self._small)) - len(self._going.prompt)
        return "length" if len(self._tokens) >= min(self._going.limit, room) else None
