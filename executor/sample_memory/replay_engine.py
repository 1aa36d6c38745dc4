"""An engine that answers from what was saved of a row, and what it has to ask of a model all the same.

A number that was not read then is read now. A sample that was not drawn then is drawn where that is permitted; else it
is missing, and its request fails.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from qpdsl.executor.requests.engine import Capabilities, Engine
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, ReadingRequest, Request
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.sample_memory.kept_sample import KeptSample, SampleSource, given
from qpdsl.executor.sample_memory.sample_memory import SampleMemory
from qpdsl.executor.sample_memory.saved_samples import RowSamples, SavedRead, digest_of, read_digests, source_digest
from qpdsl.executor.sample_memory.sharing_engine import SharingEngine


class NotSaved(EngineError):
    """A request for samples that were not saved."""


@dataclass(slots=True)
class Asked:
    """What a row needs that was not saved: `missing` samples; by model, `read` texts and `drawn` samples that its model
    was asked for.
    """

    missing: int = 0
    read: Counter[str] = field(default_factory=Counter)
    drawn: Counter[str] = field(default_factory=Counter)


class SavedMemory(SampleMemory):
    """A sample memory that knows what was saved of a row. `contents` has a digest of each model's files, by its id."""

    def __init__(self, saved: RowSamples, contents: Mapping[str, str]) -> None:
        super().__init__()
        self.contents = contents
        self._saved: dict[bytes, dict[int, list[KeptSample]]] = defaultdict(dict)
        for one in saved.drawn:
            self._saved[one.source].setdefault(one.key, []).append(one.kept)
        self._last: tuple[SampleSource, bytes | None] | None = None

    def get(self, source: SampleSource, key: int, request: GenerateRequest) -> KeptSample | None:
        found = super().get(source, key, request)
        return found or next((own for own in self._of(source, key) if own.does_for(request)), None)

    def longer(self, source: SampleSource, key: int, request: GenerateRequest) -> KeptSample | None:
        found = super().longer(source, key, request)
        if found is not None:
            return found
        known = [own for origin in (source, source.unwatched) for own in self._of(origin, key)]
        return next((own for own in known if own.begins_for(request)), None)

    def ranked(self, model: str, request: GenerateRequest, index: int) -> KeptSample | None:
        """Sample `index` of a request that no memory shares, for want of a part in what others drew or for its rank."""
        content = self.contents.get(model)
        digests = None if content is None else source_digest(content, request, index)
        greedy = request.sampling.greedy and request.exit is None
        known = [] if digests is None else self._saved[digests[0]].get(0 if greedy else request.keys[index], [])
        return next((own for own in known if own.does_for(request)), None)

    def _of(self, source: SampleSource, key: int) -> list[KeptSample]:
        if self._last is None or self._last[0] is not source:
            content = self.contents.get(source.model)
            digests = None if content is None else digest_of(replace(source, model=content))
            self._last = source, None if digests is None else digests[0]
        digest = self._last[1]
        return [] if digest is None else self._saved[digest].get(key, [])


class ReplayEngine:
    """An `Engine` for one row before another one, which somebody else drives and which it asks as little as it can.

    With `draws` missing samples are drawn. `asked` counts what was not there.
    """

    def __init__(self, engine: Engine, memory: SavedMemory, saved: RowSamples, asked: Asked, *, draws: bool) -> None:
        self._engine = engine
        self._memory = memory
        self._saved = saved
        self._asked = asked
        self._draws = draws

    @classmethod
    def before(
        cls, engine: Engine, saved: RowSamples, contents: Mapping[str, str], asked: Asked, *, draws: bool
    ) -> Engine:
        """What answers a row's requests: samples that are saved in part come from both."""
        memory = SavedMemory(saved, contents)
        return SharingEngine(cls(engine, memory, saved, asked, draws=draws), memory, lambda model: True)

    def capabilities(self, model: str) -> Capabilities:
        return self._engine.capabilities(model)

    def submit(self, model: str, request: Request) -> Ticket:
        if request.generation is not None:
            return self._generates(model, request.generation)
        assert request.reading is not None
        return self._reads(model, request.reading)

    def busy(self, model: str) -> int:
        return self._engine.busy(model)

    async def drive(self) -> None:
        await self._engine.drive()

    def _generates(self, model: str, request: GenerateRequest) -> Ticket:
        found = [self._memory.ranked(model, request, index) for index in range(request.samples)]
        kept = [one for one in found if one is not None]
        if len(kept) == len(found):

            def give(ticket: Ticket) -> Iterator[None]:
                for index, one in enumerate(kept):
                    ticket.finish_sample(index, given(one.sample(), request, index), len(request.prompt))
                    yield

            return _SavedTicket(request, give)
        missing = len(found) - len(kept)
        if self._draws:
            self._asked.drawn[model] += request.samples
            return self._engine.submit(model, request)
        return _MissingTicket(request, missing, self._asked)

    def _reads(self, model: str, request: ReadingRequest) -> Ticket:
        content = self._memory.contents.get(model)
        digests = read_digests(content, request) if content is not None and isinstance(request, SavedRead) else []
        if not digests or not all(digest in self._saved.reads for place in digests for digest in place):
            self._asked.read[model] += 1
            return self._engine.submit(model, request)
        known = [[self._saved.reads[digest] for digest in place] for place in digests]

        def give(ticket: Ticket) -> Iterator[None]:
            ticket.charged.prompt = sum(seconds for place in known for _, seconds in place)
            ticket.finish_read([tuple(value for value, _ in place) for place in known], 0)
            yield

        return _SavedTicket(request, give)


class _SavedTicket(Ticket):
    """Is answered in the next turn of the loop, unless it was given up by then."""

    def __init__(self, request: Request, answer: Callable[[Ticket], Iterable[object]]) -> None:
        super().__init__(request, lambda _: self._give_up())
        self._given_up = False
        self._answer = answer
        asyncio.get_running_loop().call_soon(self._go)

    def _go(self) -> None:
        if not self._given_up:
            for _ in self._answer(self):
                if self._given_up:
                    return

    def _give_up(self) -> None:
        self._given_up = True


class _MissingTicket(Ticket):
    """Fails for want of its samples in the next turn of the loop; of spare work once it is needed."""

    def __init__(self, request: GenerateRequest, missing: int, asked: Asked) -> None:
        super().__init__(request, lambda _: self._give_up(), lambda _: self._need())
        self._missing, self._asked = missing, asked
        self._needed = self._given_up = False
        if request.priority == 0:
            self._need()

    def _need(self) -> None:
        if not self._needed and not self._given_up:
            self._needed = True
            self._asked.missing += self._missing
            asyncio.get_running_loop().call_soon(self._fail)

    def _fail(self) -> None:
        if not self._given_up:
            what = "1 sample was" if self._missing == 1 else f"{self._missing:,} samples were"
            self.fail(NotSaved(f"{what} not drawn"))

    def _give_up(self) -> None:
        self._given_up = True
