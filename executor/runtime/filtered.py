"""`via filter(…)`: the small model's token stands where it is sure of it, else the large model draws.

Source: CALID, "confidence-aware LLM inference by filter decoding"; the score is turned so that higher is surer.
"""

from __future__ import annotations

import math

from qpdsl.executor.engine.request import Finish, GenerateRequest, LogProbRequest, Sample, SamplingParams
from qpdsl.executor.engine.sampler import NEAR_CUT_PROBABILITY
from qpdsl.executor.runtime.continuation import Going, Options
from qpdsl.executor.runtime.instance import Instance
from qpdsl.executor.runtime.loading import TextModel
from qpdsl.executor.runtime.tasks import together
from qpdsl.planner import ops

_GREEDY = SamplingParams(0.0)


async def filtered(
    op: ops.Generate,
    via: ops.Filter,
    model: TextModel,
    options: Options,
    going: list[Going],
    instance: Instance,
) -> list[tuple[Sample, ...]]:
    """The samples of each row, each drawn a token at a time; what one position costs is in the prefix cache."""
    small = instance.services.models[via.model]
    threshold = instance.number("threshold", via.threshold) or 0.0
    for each in going:
        instance.usage.prompt_tokens += 2 * len(each.prompt)
    samples = await together(
        _Walk(op, model, small, threshold, options, each, index, instance).sample()
        for each in going
        for index in range(options.count)
    )
    return [tuple(samples[at : at + options.count]) for at in range(0, len(samples), options.count)]


class _Walk:
    """One sample on its way."""

    def __init__(
        self,
        op: ops.Generate,
        model: TextModel,
        small: TextModel,
        threshold: float,
        options: Options,
        going: Going,
        index: int,
        instance: Instance,
    ) -> None:
        self._large, self._small = model, small
        self._threshold = threshold
        self._options = options
        self._going = going
        self._key = going.keys[index]
        self._watch = options.watch(op, model, going.paths, instance, index) if options.watched(instance) else None
        self._engine = instance.services.engine
        self._tokens: tuple[int, ...] = ()
        self._near_ties = 0

    async def sample(self) -> Sample:
        finish: Finish | None = None
        while finish is None:
            token = await self._next()
            self._tokens += (token,)
            finish = self._finish(token)
        request = LogProbRequest(self._going.prompt, self._tokens)
        logprobs = (await self._engine.submit(self._large.name, request)).logprobs
        return Sample(self._tokens, finish, sum(logprobs), self._near_ties, self._watch, logprobs)

    async def _next(self) -> int:
        token, logprob, near = await self._drawn(self._small, 0, _GREEDY)
        confidence = math.exp(logprob)
        self._near_ties += abs(confidence - self._threshold) < NEAR_CUT_PROBABILITY
        if confidence < self._threshold:
            token, _, near = await self._drawn(self._large, self._key, self._options.sampling)
        self._near_ties += near
        return token

    async def _drawn(self, model: TextModel, key: int, sampling: SamplingParams) -> tuple[int, float, int]:
        request = GenerateRequest(self._going.prompt + self._tokens, (key,), sampling, 1, drawn=len(self._tokens))
        (sample,) = (await self._engine.submit(model.name, request)).samples
        return sample.tokens[0], sample.logprob, sample.near_ties

    def _finish(self, token: int) -> Finish | None:
        if token in self._large.eos:
            return "eos"
        if self._watch is not None and self._watch.push(token):
            return "stop"
        room = min(model.paged.max_positions for model in (self._large, self._small)) - len(self._going.prompt)
        return "length" if len(self._tokens) >= min(self._going.limit, room) else None
