"""An engine that draws no sample twice, and its tickets, whose samples may come from several places."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from qpdsl.executor.requests.engine import Capabilities, Engine
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, Request, Sample
from qpdsl.executor.requests.ticket import ForwardSeconds, Ticket
from qpdsl.executor.sample_memory.kept_sample import (
    DrawCost,
    KeptSample,
    SampleSource,
    as_asked,
    can_be_cut,
    cut_by,
    show,
)
from qpdsl.executor.sample_memory.sample_memory import SampleMemory, SampleUnderWay, SharedDraw, Waiter


class SharingEngine:
    """An `Engine` before another one, which somebody else may drive. Requests are submitted inside an asyncio loop.

    Samples that are remembered come in the next turn of the loop, those that are being drawn once they have ended, and
    one request to the engine behind draws the others. A sample that waits with another's request has that request's
    client, and is given up once nobody waits for it. `shares` says of a model whether its samples are the same whatever
    is computed beside them; by default they are where the engine gives every token again.
    """

    def __init__(self, engine: Engine, memory: SampleMemory, shares: Callable[[str], bool] | None = None) -> None:
        self._engine = engine
        self._memory = memory
        self._shares = shares or self._repeats

    def capabilities(self, model: str) -> Capabilities:
        return self._engine.capabilities(model)

    def submit(self, model: str, request: Request) -> Ticket:
        drawn = request.generation if self._shares(model) else None
        source = None if drawn is None else SampleSource.of(model, drawn)
        if drawn is None or source is None:
            return self._engine.submit(model, request)
        ticket = SharedTicket(drawn, self._memory, partial(self._collect, source))
        self._collect(source, ticket, range(len(drawn.keys)), again=False)
        return ticket

    def busy(self, model: str) -> int:
        return self._engine.busy(model)

    async def drive(self) -> None:
        await self._engine.drive()

    def _repeats(self, model: str) -> bool:
        return self._engine.capabilities(model).repeats == "exact"

    def _collect(
        self, source: SampleSource, ticket: SharedTicket, indices: Sequence[int], *, again: bool = True
    ) -> None:
        """Has a ticket get its samples of these numbers. Raises EngineError; then nothing has changed.

        `again`: those that others were to draw for it did not do.
        """
        request = ticket.generation
        kept: list[tuple[Waiter, KeptSample]] = []
        joined: list[tuple[SampleUnderWay, Waiter]] = []
        missing: dict[int, list[int]] = {}
        for index in indices:
            key = source.key(request.keys[index])
            if (one := self._memory.get(source, key, request)) is not None:
                kept.append((Waiter(ticket, index), one))
            elif (one := self._memory.longer(source, key, request)) is not None:
                kept.append((Waiter(ticket, index, cuts=True), one))
            elif (sample := self._joinable(source, key, request)) is not None:
                joined.append((sample, Waiter(ticket, index)))
            elif not again and (sample := self._joinable(source.unwatched, key, request)) is not None:
                joined.append((sample, Waiter(ticket, index, cuts=True)))
            else:
                missing.setdefault(key, []).append(index)
        if missing:
            noise = {key: request.keys[own[0]] for key, own in missing.items()}
            draw = SharedDraw(source, request, noise, self._memory.under_way, self._memory.put)
            draw.start(self._engine)
            ticket.draws(draw)
            for sample in draw.samples:
                first, *copies = missing[sample.key]
                joined += [(sample, Waiter(ticket, first, first=True))]
                joined += [(sample, Waiter(ticket, copy)) for copy in copies]
        for sample, waiter in joined:
            ticket.wait(sample, waiter)
        if kept:
            asyncio.get_running_loop().call_soon(ticket.take_kept, kept)

    def _joinable(self, source: SampleSource, key: int, request: GenerateRequest) -> SampleUnderWay | None:
        """A sample that is being drawn, and of which as much is told as the request asks for."""
        sample = self._memory.under_way.get((source, key, request.max_tokens))
        if sample is None:
            return None
        told = sample.draw.request
        return sample if told.logprobs >= request.logprobs and told.figures >= request.figures else None


@dataclass(slots=True)
class SharedSeconds:
    """The `ForwardSeconds` of a ticket: those of the requests that draw for it, and what its shared samples took.

    `shared` are the costs of these, each with the sample's tokens.
    """

    own: list[ForwardSeconds] = field(default_factory=list)
    shared: list[tuple[DrawCost, int]] = field(default_factory=list)

    @property
    def prompt(self) -> float:
        # By itself the request would have computed its prompt once.
        prompts = [*(forwards.prompt for forwards in self.own), *(cost.forwards.prompt for cost, _ in self.shared)]
        return max(prompts, default=0.0)

    @property
    def drawn(self) -> float:
        return sum(forwards.drawn for forwards in self.own) + sum(cost.of(tokens) for cost, tokens in self.shared)


class SharedTicket(Ticket):
    """Its samples come one by one. `draw` draws those of these numbers for it, where nobody else does."""

    def __init__(
        self,
        request: GenerateRequest,
        memory: SampleMemory,
        draw: Callable[[SharedTicket, Sequence[int]], None],
    ) -> None:
        super().__init__(request, lambda _: self._leave_all(), lambda _: self._promote_all())
        self.generation = request
        self._own: list[SharedDraw] = []
        self._memory = memory
        self._draw = draw
        self._waits: dict[int, SampleUnderWay] = {}
        self._given_up = False
        self._urgent = request.priority == 0
        self._again: list[int] = []
        self._forwards = SharedSeconds()
        self._shared = 0
        self._saved_tokens = 0

    @property
    def forwards(self) -> ForwardSeconds:
        return self._forwards

    @property
    def shared(self) -> int:
        # The engine behind may share too.
        return self._shared + sum(draw.ticket.shared for draw in self._own)

    @property
    def saved_tokens(self) -> int:
        return self._saved_tokens + sum(draw.ticket.saved_tokens for draw in self._own)

    def draws(self, draw: SharedDraw) -> None:
        """Notes a request that draws samples for it."""
        self._own.append(draw)
        self._forwards.own.append(draw.ticket.forwards)

    def wait(self, sample: SampleUnderWay, waiter: Waiter) -> None:
        """Waits for a sample that is being drawn."""
        self._waits[waiter.index] = sample
        sample.add(waiter)
        if self._urgent:
            sample.draw.promote()

    def take(self, waiter: Waiter, drawn: Sample, draw: SharedDraw) -> None:
        """Takes a sample that it waited for."""
        if waiter.cuts and not can_be_cut(drawn):
            self.draw_again(waiter.index)
            return
        del self._waits[waiter.index]
        if waiter.cuts:
            drawn = self._cut(waiter, drawn)
        elif waiter.watch is None:
            # An engine need not make the watch of a sample before it has all of it.
            waiter.begin()
            show(drawn, waiter.watch)
        self._got(waiter.index, as_asked(drawn, self.generation, waiter.watch), draw.cost, shared=not waiter.first)

    def take_kept(self, kept: Sequence[tuple[Waiter, KeptSample]]) -> None:
        """Takes samples that are remembered, unless it was given up or has failed by now."""
        for waiter, one in kept:
            if self._given_up or self.done:
                return
            sample = one.sample()
            if waiter.cuts:
                sample = self._cut(waiter, sample)
            else:
                waiter.begin()
                show(sample, waiter.watch)
            self._got(waiter.index, as_asked(sample, self.generation, waiter.watch), one.cost, shared=True)

    def draw_again(self, index: int) -> None:
        """Has a sample drawn for it that somebody else's request was to draw, once the engine's step is over."""
        del self._waits[index]
        if not self._again:
            asyncio.get_running_loop().call_soon(self._draw_those_again)
        self._again.append(index)

    def fail(self, error: EngineError) -> None:
        if not self.done:
            super().fail(error)
            self._leave_all()

    def _draw_those_again(self) -> None:
        indices, self._again = self._again, []
        if self._given_up or self.done:
            return
        try:
            self._draw(self, indices)
        except EngineError as error:
            self.fail(error)

    def _cut(self, waiter: Waiter, sample: Sample) -> Sample:
        waiter.begin()
        return cut_by(sample, waiter.watch, self.generation.max_tokens)

    def _got(self, index: int, sample: Sample, cost: DrawCost, *, shared: bool) -> None:
        totals, tokens = self._memory.totals, sample.size
        totals.samples += 1
        totals.tokens += tokens
        if shared:
            totals.shared_samples += 1
            totals.saved_tokens += tokens
        if shared and self._memory.charges_again:
            self._forwards.shared.append((cost, len(sample.tokens)))
            self._shared += 1
            self._saved_tokens += tokens
        cached = [draw.ticket.cached for draw in self._own]
        self.finish_sample(index, sample, min(cached, default=len(self.generation.prompt)))

    def _leave_all(self) -> None:
        self._given_up = True
        waits, self._waits = self._waits, {}
        for sample in waits.values():
            sample.leave(self)
            sample.draw.left(sample)

    def _promote_all(self) -> None:
        self._urgent = True
        for sample in self._waits.values():
            sample.draw.promote()
