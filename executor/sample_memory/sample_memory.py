"""The samples that are remembered, those that are being drawn, and how many were shared.

A draw is a request to the engine for samples that nobody has drawn, which others may join while it is served.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from qpdsl.executor.requests.engine import Engine
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, Request, Sample, Watch
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.sample_memory.kept_sample import DrawCost, KeptSample, SampleSource

# Some 20 million tokens.
MAX_BYTES = 256 << 20
# The source of a sample, its noise key, and its `max_tokens`.
Place = tuple[SampleSource, int, int]


@dataclass(slots=True)
class ShareTotals:
    """What requests got so far: `samples` with `tokens`, of which `shared_samples` with `saved_tokens` were not drawn
    for them.
    """

    samples: int = 0
    tokens: int = 0
    shared_samples: int = 0
    saved_tokens: int = 0


@dataclass(slots=True)
class _Prompt:
    """The samples of one source, by noise key, and by `max_tokens` too where that ended them, else 0."""

    bytes: int
    kept: dict[tuple[int, int], KeptSample] = field(default_factory=dict)


class SampleMemory:
    """Remembers samples by all that they depend on. In `most_bytes`, those of the prompts that were used last.

    `totals` tells what was shared. With `charges_again` a ticket counts its shared samples, and the seconds that they
    took when they were drawn, as if they had been drawn for it; without, it tells nothing of them. `under_way` are the
    samples that engines draw now, for others to join.
    """

    def __init__(self, most_bytes: int = MAX_BYTES, *, charges_again: bool = True) -> None:
        self.totals = ShareTotals()
        self.charges_again = charges_again
        self.under_way: dict[Place, SampleUnderWay] = {}
        self._most_bytes = most_bytes
        self._prompts: OrderedDict[SampleSource, _Prompt] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """About so much memory the remembered samples take."""
        return self._bytes

    @property
    def samples(self) -> int:
        """How many samples are remembered."""
        return sum(len(prompt.kept) for prompt in self._prompts.values())

    def get(self, source: SampleSource, key: int, request: GenerateRequest) -> KeptSample | None:
        """The remembered sample that a request from this source would get under a key; None where there is none."""
        prompt = self._used(source)
        if prompt is not None:
            for bound in (0, request.max_tokens):
                kept = prompt.kept.get((key, bound))
                if kept is not None and kept.does_for(request):
                    return kept
        return None

    def longer(self, source: SampleSource, key: int, request: GenerateRequest) -> KeptSample | None:
        """A remembered sample of which that one is the beginning; None where there is none."""
        prompt = self._used(source.unwatched)
        kept = None if prompt is None else prompt.kept.get((key, 0))
        return kept if kept is not None and kept.begins_for(request) else None

    def _used(self, source: SampleSource) -> _Prompt | None:
        prompt = self._prompts.get(source)
        if prompt is not None:
            self._prompts.move_to_end(source)
        return prompt

    def put(self, source: SampleSource, key: int, request: GenerateRequest, sample: Sample, cost: DrawCost) -> None:
        """Remembers a sample that a request from this source got under a key."""
        kept = KeptSample.of(sample, request, cost)
        prompt = self._prompts.get(source)
        if prompt is None:
            prompt = self._prompts[source] = _Prompt(source.bytes)
            self._bytes += prompt.bytes
        self._prompts.move_to_end(source)
        place = (key, request.max_tokens if sample.finish == "length" else 0)
        before = prompt.kept.get(place)
        more = kept.bytes - (0 if before is None else before.bytes)
        prompt.kept[place] = kept
        prompt.bytes += more
        self._bytes += more
        while self._bytes > self._most_bytes:
            _, oldest = self._prompts.popitem(last=False)
            self._bytes -= oldest.bytes

    def forget(self) -> None:
        """Forgets all remembered samples. Those that are being drawn come to whoever waits for them."""
        self._prompts.clear()
        self._bytes = 0


class Taker(Protocol):
    """A ticket, as a sample that it waits for sees it; `SharedTicket` implements it."""

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
