"""An engine that draws no sample twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from qpdsl.executor.requests.engine import Capabilities, Engine
from qpdsl.executor.requests.request import GenerateRequest, Request
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.sample_memory.kept_sample import KeptSample
from qpdsl.executor.sample_memory.sample_memory import SampleMemory
from qpdsl.executor.sample_memory.sample_source import SampleSource
from qpdsl.executor.sample_memory.shared_draw import SampleUnderWay, SharedDraw, Waiter
from qpdsl.executor.sample_memory.shared_ticket import SharedTicket


class SharingEngine:
    """An `Engine` before another one, which somebody else may drive. Requests are submitted inside an asyncio loop.

    Samples that are remembered come in the next turn of the loop, those that are being drawn once they have ended, and
    one request to the engine behind draws the others. A sample that waits with another's request has that request's
    owner, and is given up once nobody waits for it. `shares` says of a model whether its samples are the same whatever
    is computed beside them; by default they are where the engine gives every token again.
    """

    def __init__(self, engine: Engine, memory: SampleMemory, shares: Callable[[str], bool] | None = None) -> None:
        self._engine = engine
        self._memory = memory
        self._shares = shares or self._repeats

    def capabilities(self, model: str) -> Capabilities:
        return self._engine.capabilities(model)

    def submit(self, model: str, request: Request) -> Ticket:
        if not isinstance(request, GenerateRequest) or not self._shares(model):
            return self._engine.submit(model, request)
        source = SampleSource.of(model, request)
        if source is None:
            return self._engine.submit(model, request)
        ticket = SharedTicket(request, self._memory, partial(self._collect, source))
        self._collect(source, ticket, range(len(request.keys)), again=False)
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
