"""The door's end of the replicas: requests are placed by prefix, and asked again where a replica was lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any

from qpdsl.cluster.backends.backend import ReplicaBackend
from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.dispatcher import beginning
from qpdsl.cluster.fleet import Fleet, ReplicaFigures
from qpdsl.cluster.replica.messages import ReplicaMessage, ReplicaSetup
from qpdsl.cluster.row_scheduler import MAX_LOSSES
from qpdsl.executor.events.events import REPLICA_SIGN
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.models.unloaded_model import ModelFacts
from qpdsl.executor.requests.engine_loop import driven
from qpdsl.planner.explain.quantities import exact_plural
from qpdsl.serve.completion_request import PROMPT_FIELD, CompletionRequest, Refusal
from qpdsl.serve.offered_models import Offer
from qpdsl.serve.replicas.request_work import (
    AskModel,
    DropRequest,
    ModelsKnown,
    RequestFailed,
    RequestUpdated,
    RequestWork,
    Update,
)
from qpdsl.serve.served_model import CompletionResponse, Delta, Progress, ServedModel, no_pause
from qpdsl.session.replaying_session import ReplayingSession

# A replica has at most so many times its even share of the requests (Mirrokni, Thorup and Zadimoghaddam, 2018).
_BOUND = 1.25
# A replica takes seconds to load: one that is idle stays for a while.
_IDLE_SECONDS = 60.0


class ReplicaPool:
    """The replicas of an address, and the models that they answer for: see `FleetWork`.

    `setup` has the offer as a `RequestWork`. `places` are the requests that run at once; where an address says from how
    many to how many replicas, another is started while those that are ready have more than their shares of these.
    `queued` tells how many wait for one. For the rest see `Fleet`.
    """

    def __init__(
        self,
        address: ClusterAddress,
        offer: Offer,
        setup: ReplicaSetup,
        events: EventStream,
        *,
        places: int,
        tell: Callable[[str], None] = lambda note: None,
        backend: ReplicaBackend | None = None,
    ) -> None:
        self.events = events
        self.models: list[ServedModel] = [ReplicatedModel(name, self) for name in offer.names]
        self.queued: Callable[[], int] = lambda: 0
        self.resent = 0
        self.finished = False
        self._address = address
        self._offer = offer
        self._settings = setup.settings
        self._share = math.ceil(places / address.most)
        self._fleet = Fleet(
            address,
            setup,
            RequestWork(offer).models,
            self,
            events,
            tell=tell,
            allow_mixed=None,
            backend=backend,
            idle_seconds=_IDLE_SECONDS,
        )
        self._numbers = itertools.count()
        self._calls: dict[int, _Call] = {}
        self._seats: dict[str, _Seat] = {}
        self._own: Mapping[str, ServedModel] = {}
        self._ready = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Has replicas running while the block does, which begins once one is ready. What ends them all ends it.

        Raises ModelError and UsageError.
        """
        async with driven(self._drive(), "the replicas"):
            await self._ready.wait()
            yield

    @property
    def is_ready(self) -> bool:
        """Whether a replica was ready once."""
        return self._ready.is_set()

    @property
    def counts(self) -> tuple[int, int]:
        """How many replicas take requests, and how many are on their way to that."""
        ready, loading = self._fleet.counts()
        return len(self._seats), ready + loading - len(self._seats)

    @property
    def figures(self) -> list[ReplicaFigures]:
        """Of all replicas, in the order in which they were started."""
        return self._fleet.figures

    @property
    def lost(self) -> int:
        """How many replicas were lost by now."""
        return self._fleet.lost

    @property
    def engine(self) -> ReplicaPool:
        """What says how busy each model is."""
        return self

    def busy(self, model: str) -> int:
        """How many requests the replica has whose model it is, by the name in events. Raises KeyError for none."""
        return len(self._seats[model.rpartition(REPLICA_SIGN)[2]].calls)

    def own(self, name: str) -> ServedModel:
        """The model of that name without its weights, to read requests by."""
        return self._own[name]

    async def updates(
        self, model: str, request: CompletionRequest, key: bytes | None, size: int, *, streams: bool
    ) -> AsyncGenerator[Update, None]:
        """An answer as it comes, of whichever replica; the whole answer is the last. Raises what a model does.

        Where the generator is closed before, the replica gives the request up.
        """
        call = _Call(next(self._numbers), model, request, key, size, streams)
        self._calls[call.number] = call
        try:
            self._place(call)
            while True:
                update = await call.updates.get()
                if isinstance(update, Exception):
                    raise update
                yield update
                if isinstance(update, CompletionResponse):
                    break
        finally:
            self._forget(call)

    @property
    def waiting(self) -> int:
        """See `FleetWork`."""
        return self.queued() + max(0, len(self._calls) - self._share * len(self._seats))

    @property
    def idle(self) -> list[str]:
        """See `FleetWork`."""
        return [name for name, seat in self._seats.items() if not seat.calls]

    def expect(self, replicas: int) -> None:
        """See `FleetWork`."""

    def joined(self, figures: ReplicaFigures) -> None:
        """See `FleetWork`: what it knows of its models comes with its next message."""

    def heard(self, figures: ReplicaFigures, clock: float, message: ReplicaMessage) -> None:
        """See `FleetWork`."""
        match message:
            case ModelsKnown(facts=facts):
                self._seats[figures.name] = _Seat(figures, clock)
                if not self._own:
                    self._read_by(facts)
                self._ready.set()
                for call in [call for call in self._calls.values() if call.replica is None and not call.ended]:
                    self._place(call)
            case RequestUpdated(number=number, update=update) if (own := self._call_of(figures, number)) is not None:
                own.take(update)
                if isinstance(update, CompletionResponse):
                    figures.rows += 1
                    figures.tokens += update.usage.completion_tokens
                    self._release(own)
            case RequestFailed(number=number, error=error) if (own := self._call_of(figures, number)) is not None:
                own.end(error)
                self._release(own)

    def left(self, figures: ReplicaFigures) -> str:
        """See `FleetWork`: its requests are asked of others, but for those under way too often, which fail."""
        seat = self._seats.pop(figures.name, None)
        before = self.resent
        for call in [] if seat is None else list(seat.calls.values()):
            call.replica = None
            call.lose()
            if call.losses >= MAX_LOSSES:
                message = f"{MAX_LOSSES} replicas were lost while they answered this request"
                call.end(Refusal(message, status=503, code="replica_lost"))
            else:
                self.resent += 1
                self._place(call)
        return f"{exact_plural(self.resent - before, 'request')} asked again"

    async def _drive(self) -> None:
        """Runs the replicas; where it is cancelled, they end in good order."""
        running = asyncio.create_task(self._fleet.run(self._address.least))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self.finished = True
            self._fleet.stop_all()
            await running
            raise

    def _read_by(self, facts: Mapping[str, ModelFacts]) -> None:
        """Makes the models that requests are read by."""
        session = ReplayingSession.of(self._settings, facts=facts, outlive_servers=True)
        for plan in self._offer.plans:
            session.load(plan)
        self._own = {model.name: model for model in self._offer.models(session)}

    def _call_of(self, figures: ReplicaFigures, number: int) -> _Call | None:
        """The request of that number, where the replica has it."""
        call = self._calls.get(number)
        return call if call is not None and call.replica == figures.name else None

    def _place(self, call: _Call) -> None:
        """Sends a request to a replica; it waits where there is none.

        That is the first with room in an order that its beginning gives (rendezvous hashing: Thaler and Ravishankar,
        1998), which another replica more or less hardly changes. One with no beginning to share goes where there is
        least to do.
        """
        if not self._seats:
            return
        most = math.ceil(_BOUND * (1 + sum(len(seat.calls) for seat in self._seats.values())) / len(self._seats))
        seats = sorted(self._seats.values(), key=partial(_rank, call.key))
        seat = next(seat for seat in seats if len(seat.calls) < most)
        call.replica = seat.figures.name
        seat.calls[call.number] = call
        self._fleet.send(call.replica, call.asked(seat.clock))

    def _release(self, call: _Call) -> None:
        if call.replica is not None:
            seat = self._seats.get(call.replica)
            if seat is not None:
                seat.calls.pop(call.number, None)
            call.replica = None

    def _forget(self, call: _Call) -> None:
        del self._calls[call.number]
        if call.replica is not None:
            self._fleet.send(call.replica, DropRequest(call.number))
        self._release(call)


def _rank(key: bytes | None, seat: _Seat) -> tuple[float, int]:
    """Where a replica stands in the order of a beginning; without one by what it has to do."""
    if key is None:
        return len(seat.calls), seat.figures.number
    hashed = blake2b(key + b"%d" % seat.figures.number, digest_size=8)
    return int.from_bytes(hashed.digest()), seat.figures.number


@dataclass(slots=True)
class _Seat:
    """A replica that takes requests, and those that it has. Its clock is `clock` seconds behind."""

    figures: ReplicaFigures
    clock: float
    calls: dict[int, _Call] = field(default_factory=dict)


@dataclass(slots=True)
class _Shown:
    """How much of a choice has come: letters of its thought and of its text, and token ids."""

    thought: int = 0
    text: int = 0
    tokens: int = 0


@dataclass(slots=True)
class _Call:
    """A request on its way, and where: at `replica`, or at none while it waits for one."""

    number: int
    model: str
    request: CompletionRequest
    key: bytes | None
    size: int
    streams: bool
    replica: str | None = None
    losses: int = 0
    ended: bool = False
    updates: asyncio.Queue[Update | Exception] = field(default_factory=asyncio.Queue)
    _shown: dict[int, _Shown] = field(default_factory=dict)
    _again: dict[int, _Shown] = field(default_factory=dict)

    def asked(self, clock: float) -> AskModel:
        """What is sent to a replica whose clock is so many seconds behind."""
        request, due = self.request, self.request.client.deadline
        if due is not None:
            request = replace(request, client=replace(request.client, deadline=due - clock))
        return AskModel(self.number, self.model, request, self.size, self.streams)

    def take(self, update: Update) -> None:
        """Passes on what the client does not have yet."""
        fresh = self._fresh(update) if isinstance(update, Delta) else update
        if fresh is not None:
            self.ended = isinstance(fresh, CompletionResponse)
            self.updates.put_nowait(fresh)

    def end(self, error: Exception) -> None:
        self.ended = True
        self.updates.put_nowait(error)

    def lose(self) -> None:
        """Its replica was lost: the next one will say the same from the beginning."""
        self.losses += 1
        self._again = {index: replace(shown) for index, shown in self._shown.items()}

    def _fresh(self, delta: Delta) -> Delta | None:
        """What of a piece was not said by a replica before; None where all was. Token ids come with their text."""
        again = self._again.get(delta.index, _Shown())
        shown = self._shown.setdefault(delta.index, _Shown())
        ids = delta.extra.get("token_ids", ())
        thought, text, tokens = delta.thought[again.thought :], delta.text[again.text :], ids[again.tokens :]
        again.thought -= len(delta.thought) - len(thought)
        again.text -= len(delta.text) - len(text)
        again.tokens -= len(ids) - len(tokens)
        shown.thought += len(thought)
        shown.text += len(text)
        shown.tokens += len(tokens)
        if not (thought or text or tokens) and (delta.thought or delta.text or ids):
            return None
        extra = {**delta.extra, "token_ids": tokens} if "token_ids" in delta.extra else delta.extra
        return replace(delta, thought=thought, text=text, extra=extra)


class ReplicatedModel:
    """A `ServedModel` that replicas answer for. What it reads requests by is there once a replica is ready."""

    def __init__(self, name: str, pool: ReplicaPool) -> None:
        self.name = name
        self._pool = pool

    @property
    def card(self) -> Mapping[str, Any]:
        return self._own.card  # type: ignore[no-any-return]

    @property
    def tokenize(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """That of a bare model; AttributeError of a program."""
        return self._own.tokenize  # type: ignore[no-any-return]

    @property
    def detokenize(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """That of a bare model; AttributeError of a program."""
        return self._own.detokenize  # type: ignore[no-any-return]

    def read(self, request: CompletionRequest) -> ReplicatedRequest:
        """See `ServedModel`."""
        seed = self._own.read(request).seed
        said = json.dumps(request.get(PROMPT_FIELD[request.endpoint]))
        texts = [value for value in request.mapping("parameters").values() if isinstance(value, str)]
        own = beginning([said, *texts])
        # Another owner does not find what is computed for this one.
        key = None if own is None else own + request.client.owner.encode()
        pinned = replace(request, body={**request.body, "seed": seed})
        return ReplicatedRequest(self._pool, self.name, pinned, seed, key, len(said) + sum(map(len, texts)))

    @property
    def _own(self) -> Any:
        return self._pool.own(self.name)


@dataclass(frozen=True, slots=True)
class ReplicatedRequest:
    """A `PreparedRequest`, whose seed is in its body. `key` is that of its beginning, `size` about its bytes."""

    pool: ReplicaPool
    model: str
    request: CompletionRequest
    seed: int
    key: bytes | None
    size: int

    async def answer(self) -> CompletionResponse:
        """See `PreparedRequest`."""
        async with contextlib.aclosing(self._updates(streams=False)) as updates:
            (answer,) = [update async for update in updates]
        assert isinstance(answer, CompletionResponse)
        return answer

    def stream(
        self, pause: Callable[[], float] = no_pause
    ) -> AsyncGenerator[Delta | Progress | CompletionResponse, None]:
        """See `PreparedRequest`. The replica gathers pieces itself."""
        return self._updates(streams=True)

    def _updates(self, *, streams: bool) -> AsyncGenerator[Update, None]:
        return self.pool.updates(self.model, self.request, self.key, self.size, streams=streams)
