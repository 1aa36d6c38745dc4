"""An engine without a model that draws a token at a time: what a sample writes is a hash of what it is drawn from."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from hashlib import blake2b

from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Finish, GenerateRequest, Request, Sample, StepCounts, Watch
from qpdsl.executor.requests.ticket import Ticket

EOS = 0
# Ids that a token is one of.
_IDS = 7
# Each token takes so long, and each token of a prompt.
SECONDS = 0.25


def drawn_after(request: GenerateRequest, key: int, tokens: tuple[int, ...]) -> int:
    """The token that follows `tokens` of the sample with that noise key."""
    noise = 0 if request.sampling.greedy else (key, request.drawn + len(tokens))
    given = request.sampling
    options = given.temperature, given.top_k, given.top_p, given.min_p
    text = "({}, SamplingParams(temperature={}, top_k={}, top_p={}, min_p={}), {}, {})"
    text = text.format(request.prompt, *options, noise, tokens)
    return blake2b(text.encode(), digest_size=2).digest()[0] % _IDS


@dataclass(eq=False)
class _Sample:
    ticket: Ticket
    index: int
    watch: Watch | None
    tokens: list[int] = field(default_factory=list)


class TokenEngine:
    """`step` draws a token of one sample. `requests` are those that came, `cancelled` those that were given up.

    Requests whose prompt holds the id `poisoned` fail at their third token.
    """

    def __init__(self, chance: random.Random | None = None, poisoned: int | None = None) -> None:
        self.requests: list[GenerateRequest] = []
        self.tickets: list[Ticket] = []
        self.promoted: list[Ticket] = []
        self.cancelled = 0
        self.drawn = 0
        self._chance = chance or random.Random(0)
        self._poisoned = poisoned
        self._live: list[_Sample] = []

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(frozenset({"sampling", "seeds"}))

    def submit(self, model: str, request: Request) -> Ticket:
        assert isinstance(request, GenerateRequest)
        if len(request.prompt) > 9:
            raise EngineError("too long")
        ticket = Ticket(request, self._cancel, self.promoted.append)
        ticket.charged.prompt = len(request.prompt) * SECONDS
        self.requests.append(request)
        self.tickets.append(ticket)
        for index in range(request.samples):
            self._live.append(_Sample(ticket, index, None if request.watch is None else request.watch(index)))
        return ticket

    def busy(self, model: str) -> int:
        return len(self._live)

    async def drive(self) -> None:
        while True:
            if self._live:
                self.step()
            await asyncio.sleep(0)

    def step(self) -> None:
        """Draws a token of one of the samples."""
        sample = self._chance.choice(self._live)
        request = sample.ticket.request
        assert isinstance(request, GenerateRequest)
        token = drawn_after(request, request.keys[sample.index], tuple(sample.tokens))
        sample.tokens.append(token)
        self.drawn += 1
        sample.ticket.charged.drawn += SECONDS
        if len(sample.tokens) == 3 and self._poisoned in request.prompt:
            self._cancel(sample.ticket)
            sample.ticket.fail(EngineError("poisoned"))
            return
        finish: Finish | None = None
        if token in request.eos:
            finish = "eos"
        elif sample.watch is not None and sample.watch.push(token):
            finish = "stop"
        elif len(sample.tokens) == request.max_tokens:
            finish = "length"
        if finish is not None:
            self._live.remove(sample)
            sample.ticket.finish_sample(sample.index, sample_of(request, sample.tokens, finish, sample.watch), 0)

    def run(self) -> None:
        """Steps until nothing is left to draw."""
        while self._live:
            self.step()

    def _cancel(self, ticket: Ticket) -> None:
        self.cancelled += 1
        self._live = [sample for sample in self._live if sample.ticket is not ticket]


def sample_of(request: GenerateRequest, tokens: list[int], finish: Finish, watch: Watch | None) -> Sample:
    """A sample with the figures that the engine gives it."""
    logprobs = tuple(-token / 8 if request.logprobs else 0.0 for token in tokens)
    steps = StepCounts(len(tokens), len(tokens))
    return Sample(tuple(tokens), finish, sum(logprobs), sum(token == 1 for token in tokens), watch, logprobs, steps)
