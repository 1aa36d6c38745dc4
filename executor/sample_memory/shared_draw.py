"""A request to the engine for samples that nobody has drawn, which others may join while it is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from qpdsl.executor.requests.engine import Engine
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, Request, Sample, Watch
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.sample_memory.kept_sample import DrawCost
from qpdsl.executor.sample_memory.sample_source import SampleSource

# The source of a sample, its noise key, and its `max_tokens`.
Place = tuple[SampleSource, int, int]


class Taker(Protocol):
    """A ticket, as a sample that it waits for sees it; `shared_ticket.py` implements it."""

    request: Request
    generation: GenerateRequest

    def take(self, waiter: Waiter, drawn: Sample, draw: SharedDraw) -> None:
        """The sample has ended."""

    def draw_again(self, index: int) -> None:
        """The sample does not come: it must be drawn by another request."""

    def fail(self, error: EngineError) -> None:
        """The request cannot be served."""


class Waiter:
    """A ticket that waits for a sample as its sample `index`.

    `first`: the sample is drawn for it. `cuts`: it gets the beginning of the sample, up to where its own watch ends it,
    which follows the sample once that is whole.
    """

    __slots__ = ("cuts", "first", "index", "ticket", "watch")

    def __init__(self, ticket: Taker, index: int, *, first: bool = False, cuts: bool = False) -> None:
        self.ticket = ticket
        self.index = index
        self.first = first
        self.cuts = cuts
        self.watch: Watch | None = None

    def begin(self) -> None:
        """Makes its watch."""
        make = self.ticket.generation.watch
        self.watch = None if make is None else make(self.index)


class SampleUnderWay:
    """A sample that is being drawn. To the engine it is the watch of that sample.

    It ends where the watches of those that wait say so, who all say the same, and at once where nobody waits any more.
    """

    def __init__(self, draw: SharedDraw, key: int) -> None:
        self.draw = draw
        self.key = key
        self.waiters: tuple[Waiter, ...] = ()
        self._tokens: list[int] = []
        self._begun = False

    def begin(self) -> SampleUnderWay:
        """Makes the watches, as the engine begins to draw the sample."""
        self._begun = True
        for waiter in self.waiters:
            if not waiter.cuts:
                waiter.begin()
        return self

    def push(self, token: int) -> bool:
        self._tokens.append(token)
        ends = not self.waiters
        for waiter in self.waiters:
            if waiter.watch is not None and waiter.watch.push(token):
                ends = True
        return ends

    def add(self, waiter: Waiter) -> None:
        """Has a ticket wait for this sample; its watch catches up."""
        self.waiters = (*self.waiters, waiter)
        if self._begun and not waiter.cuts:
            waiter.begin()
            if waiter.watch is not None:
                for token in self._tokens:
                    waiter.watch.push(token)

    def leave(self, ticket: Taker) -> None:
        """A ticket waits no longer."""
        self.waiters = tuple(waiter for waiter in self.waiters if waiter.ticket is not ticket)


class SharedDraw:
    """Draws the samples of some keys with one request to an engine, and gives each to whoever waits for it.

    `request` is the one that the first ticket was made for, and `noise` has the noise keys to draw with, by what the
    source makes of them. `cost` is what the samples take. While they are drawn they stand among those `under_way`;
    `remember` is called with each that somebody waited for, with its source, its key and its request.
    """

    def __init__(
        self,
        source: SampleSource,
        request: GenerateRequest,
        noise: Mapping[int, int],
        under_way: dict[Place, SampleUnderWay],
        remember: Callable[[SampleSource, int, GenerateRequest, Sample, DrawCost], None],
    ) -> None:
        self.request = request
        self._under_way = under_way
        self._remember = remember
        self._source = source
        self._noise = noise
        self._urgent = request.priority == 0
        self.samples = [SampleUnderWay(self, key) for key in noise]

    def start(self, engine: Engine) -> None:
        """Sends the request. Raises EngineError where it cannot be served; then nothing has changed."""
        request = replace(
            self.request,
            keys=tuple(self._noise.values()),
            watch=lambda index: self.samples[index].begin(),
            ended_by=self._source.ended_by,
        )
        self.ticket: Ticket = engine.submit(self._source.model, request)
        self.cost = DrawCost(self.ticket.forwards)
        self.ticket.on_sample = self._ended
        self.ticket.on_failure = self._failed
        for sample in self.samples:
            self._under_way[self._place(sample)] = sample

    def promote(self) -> None:
        """Somebody needs a sample now."""
        if not self._urgent:
            self._urgent = True
            self.ticket.promote()

    def left(self, sample: SampleUnderWay) -> None:
        """A ticket waits for a sample no longer. The request is given up where nobody waits for any."""
        if not sample.waiters:
            self._forget(sample)
        if not any(sample.waiters for sample in self.samples):
            self.ticket.cancel()

    def _place(self, sample: SampleUnderWay) -> Place:
        return self._source, sample.key, self.request.max_tokens

    def _forget(self, sample: SampleUnderWay) -> None:
        place = self._place(sample)
        if self._under_way.get(place) is sample:
            del self._under_way[place]

    def _ended(self, index: int, drawn: Sample) -> None:
        """Engine side: a sample has ended. What it is worth to those who left is nothing: it was cut short."""
        sample = self.samples[index]
        self.cost.sampled += len(drawn.tokens)
        self._forget(sample)
        waiters, sample.waiters = sample.waiters, ()
        if waiters:
            self._remember(self._source, sample.key, self.request, drawn, self.cost)
        for waiter in waiters:
            waiter.ticket.take(waiter, drawn, self)

    def _failed(self, error: EngineError) -> None:
        """Engine side: the request cannot be served. Who asked for it fails; the others ask for their samples again.

        What made it fail may be a sample that they do not wait for.
        """
        for sample in self.samples:
            self._forget(sample)
            waiters, sample.waiters = sample.waiters, ()
            for waiter in waiters:
                if waiter.ticket.request is self.request:
                    waiter.ticket.fail(error)
                else:
                    waiter.ticket.draw_again(waiter.index)
