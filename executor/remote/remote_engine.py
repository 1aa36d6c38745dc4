"""The engine of models on servers elsewhere: each sample and each reading is a request of its own."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import httpx

from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.remote.completion_store import CompletionStore, request_key
from qpdsl.executor.remote.concurrency_limit import ConcurrencyLimit
from qpdsl.executor.remote.dialects.dialect import Question, Values
from qpdsl.executor.remote.dialects.known_dialects import named
from qpdsl.executor.remote.request_queue import RequestQueue, prefix_of
from qpdsl.executor.remote.scoring import scored
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.connection import STALL, Connection
from qpdsl.executor.remote.server.failures import PATIENCE, Refused, Retries, Unreachable
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
from qpdsl.executor.remote.server_call import ModelAtServer, ReadingCall, SampleCall, ServerCall, sample_calls
from qpdsl.executor.remote.spending import Meter
from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.errors import BudgetReached, EngineError, RequestRefused, ServerGone
from qpdsl.executor.requests.request import Calls, GenerateRequest, Priority, Request
from qpdsl.executor.requests.ticket import Ticket

# Requests that are looked up in the store before others get their turn.
_LOOKUPS = 32
# Seconds between two reports.
_REPORT_EVERY = 0.1
# And between those of requests that fail, or wait for a token.
_WAITING_EVERY = 1.0
# Seconds without a token after which a server with requests is quiet.
_QUIET = 5.0
# That streams end as others begin is no chance where so many requests did that in a row.
_ENDED_BY_OTHERS = 2
# Turns of the event loop in which what was replayed is looked at.
_TURNS = 8


@dataclass(frozen=True, slots=True)
class RemoteCounts:
    """What a model took so far: of its `calls`, what was given up and what broke off counts too.

    `in_flight` of its requests are at the server, which gets `limit` at once for all its models, and `queued` wait for
    their turn. `again` of the queued were sent before: `why` says what became of the latest of these, None where there
    are none. The server has failed all requests for `failing` seconds, 0 where it answered one since; one is sent again
    in `resumes` seconds. It has had requests and given no token of any model for `quiet` seconds, 0 for a few.
    """

    in_flight: int
    limit: int
    calls: Calls
    queued: int = 0
    again: int = 0
    why: str | None = None
    failing: float = field(default=0.0, compare=False)
    resumes: float = field(default=0.0, compare=False)
    quiet: float = field(default=0.0, compare=False)


@dataclass(eq=False)
class _Server:
    """What all models under one URL share. Nothing is sent before `not_before`, as the server asked.

    `failure` is how a request failed last that was to be sent again; `heard` is when a request was answered last, or
    went to a server that had none; `latest` went last, and `enders` are those that went last as streams before them
    ended before the answer's end, since such a stream was whole.
    """

    connection: Connection
    retries: Retries
    concurrency: ConcurrencyLimit = field(default_factory=ConcurrencyLimit)
    queue: RequestQueue[ServerCall] = field(default_factory=RequestQueue)
    not_before: float = 0.0
    failure: str = ""
    heard: float = 0.0
    latest: ServerCall | None = None
    enders: set[ServerCall] = field(default_factory=set)


@dataclass(eq=False)
class _Asked:
    """A ticket that is not done: the calls that are left of it, in their order, and the task that reads for it."""

    model: ModelAtServer
    priority: Priority
    calls: dict[ServerCall, None] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


class RemoteEngine:
    """An `Engine` of models on any number of servers.

    `store` keeps answers and gives them again; `meter` says when enough was spent. `patience`: seconds without any
    answer after which a server is given up, and `drive` raises ServerGone. With `outlives` what waits for that server
    fails with it instead, as what comes later does at its first failure, until the server answers again; the rest goes
    on. `tell` is called with notes for the user, `changed` when requests have come or gone, and with them what is
    `busy`; `on_report` gets a model and its counts, a few times a second while they change. `transport` takes the place
    of sockets, for tests. While `drive` does not run, nothing is open.
    """

    def __init__(
        self,
        store: CompletionStore | None = None,
        meter: Meter | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        patience: float = PATIENCE,
        outlives: bool = False,
        tell: Callable[[str], None] | None = None,
        changed: Callable[[], None] = lambda: None,
        on_report: Callable[[str, RemoteCounts], None] | None = None,
    ) -> None:
        self._store = store
        self._meter = meter or Meter()
        self._transport = transport
        self._patience = patience
        self._outlives = outlives
        self._tell = tell
        self._changed = changed
        self._on_report = on_report
        self._reported: dict[str, RemoteCounts] = {}
        self._reported_at = -math.inf
        self._report_due: asyncio.TimerHandle | None = None
        self._told = False
        self._models: dict[str, ModelAtServer] = {}
        self._servers: dict[str, _Server] = {}
        self._asked: dict[Ticket, _Asked] = {}
        self._new: list[Ticket] = []
        self._running: dict[ServerCall, asyncio.Task[tuple[float, int]]] = {}
        self._spent: dict[str, Calls] = {}
        self._failure: BaseException | None = None
        self._woken: asyncio.Event | None = None

    def add(self, model_id: str, address: Address, capabilities: ServerCapabilities, text_model: TextModel) -> None:
        """Makes a model ready for requests under `model_id`. Raises ModelError where the keys cannot be read."""
        if address.url not in self._servers:
            connection = Connection(address.url, self._transport, min(STALL, self._patience))
            self._servers[address.url] = _Server(connection, Retries(self._patience))
        self._models[model_id] = ModelAtServer(model_id, address, capabilities, text_model, named(address.dialect))
        self._spent.setdefault(model_id, Calls())

    def capabilities(self, model: str) -> Capabilities:
        """See `Engine`."""
        return self._models[model].capabilities.for_engine

    def counts(self, model: str) -> RemoteCounts:
        """What the model took since the engine was made."""
        server = self._server(self._models[model])
        in_flight = sum(call.model.id == model for call in self._running)
        queued = [call for call in server.queue if call.model.id == model]
        again = [call for call in queued if call.attempts]
        now, quiet = time.monotonic(), 0.0
        if in_flight:
            there = (call for call in self._running if self._server(call.model) is server)
            quiet = now - max([server.heard, *(call.told for call in there)])
            quiet = quiet if quiet >= _QUIET else 0.0
        counts = RemoteCounts(in_flight, server.concurrency.limit, self._spent[model], len(queued), quiet=quiet)
        if not again:
            return counts
        resumes = max(server.not_before, min(call.not_before for call in again)) - now
        return replace(
            counts,
            again=len(again),
            why=server.failure,
            failing=server.retries.failing,
            resumes=max(resumes, 0.0),
        )

    def busy(self, model: str) -> int:
        """The samples and readings that are waited for."""
        return sum(len(asked.calls) or 1 for asked in self._asked.values() if asked.model.id == model)

    def submit(self, model: str, request: Request) -> Ticket:
        """Queues a request. Raises EngineError for what the server would not take, or would take and ignore."""
        where = self._models[model]
        if (reason := where.refusal(request)) is not None:
            raise EngineError(f"{model} {reason}")
        ticket = Ticket(request, self._cancel, self._promote)
        asked = _Asked(where, request.priority)
        if (drawn := request.generation) is not None:
            asked.calls.update(dict.fromkeys(sample_calls(where, ticket, drawn)))
        self._asked[ticket] = asked
        self._new.append(ticket)
        self._wake()
        return ticket

    async def drive(self) -> None:
        """Sends and reads until the task is cancelled; then all connections are closed.

        What was under way is begun anew by the next `drive`. Raises ServerGone.
        """
        self._woken, self._failure = asyncio.Event(), None
        try:
            while True:
                self._woken.clear()
                await self._take_in()
                self._dispatch()
                if self._failure is not None:
                    raise self._failure
                self._changed()
                self._report()
                await self._woken.wait()
        finally:
            await self._stop()
            self._report(now=True)

    def _report(self, *, now: bool = False) -> None:
        """Tells how the models stand that have changed; what comes too early is told with what comes later."""
        if self._on_report is None:
            return
        wait = self._reported_at + _REPORT_EVERY - time.monotonic()
        if wait > 0 and not now:
            if self._report_due is None:
                self._report_due = asyncio.get_running_loop().call_later(wait, self._wake)
            return
        if self._report_due is not None:
            self._report_due.cancel()
            self._report_due = None
        waits = False
        for model in self._models:
            counts, before = self.counts(model), self._reported.get(model)
            # For how long requests fail changes while they wait, and so does how long no token comes.
            if counts != before or counts.again or counts.quiet or (before is not None and before.quiet):
                self._reported[model] = counts
                self._reported_at = time.monotonic()
                self._on_report(model, counts)
            waits = waits or counts.again > 0 or counts.in_flight > 0
        if waits and not now:
            self._report_due = asyncio.get_running_loop().call_later(_WAITING_EVERY, self._wake)

    async def _take_in(self) -> None:
        """Answers new requests out of the store, and queues the others."""
        looked, replayed = 0, False
        new, self._new = self._new, []
        for ticket in new:
            asked = self._asked.get(ticket)
            if asked is None:
                continue
            if ticket.request.generation is None:
                asked.task = asyncio.create_task(self._read(ticket, asked))
                continue
            wanted: list[SampleCall] = []
            for call in list(asked.calls):
                assert isinstance(call, SampleCall)
                if ticket in self._asked and not self._replayed(call):
                    wanted.append(call)
                looked += 1
            replayed = replayed or len(wanted) < ticket.request.samples
            if ticket in self._asked:
                self._queue(wanted, ticket.request)
            if looked >= _LOOKUPS:
                looked = 0
                await asyncio.sleep(0)
        # Who got its answers may give up the rest, as a vote does that is decided: it is told before that is sent.
        for _ in range(_TURNS if replayed else 0):
            await asyncio.sleep(0)

    def _queue(self, calls: list[SampleCall], request: GenerateRequest) -> None:
        """Puts the samples of a request in line. With `lead`, the others wait until the first has begun."""
        followers: list[SampleCall] = []
        if request.lead and calls and calls[0].streams:
            calls, followers = calls[:1], calls[1:]
            calls[0].begun = partial(self._follow, calls[0], followers)
        for call in calls:
            self._server(call.model).queue.put(call)

    def _follow(self, leader: SampleCall, followers: list[SampleCall]) -> None:
        leader.begun = _nothing
        for call in followers:
            if self._wanted(call):
                self._server(call.model).queue.put(call)
        self._wake()

    def _dispatch(self) -> None:
        """Sends what may go now."""
        now = time.monotonic()
        for server in self._servers.values():
            while server.concurrency.open and now >= server.not_before and self._failure is None:
                if (call := server.queue.take()) is None:
                    break
                if (reached := self._meter.reached) is not None:
                    server.queue.returned(call)
                    self._fail(call, BudgetReached(reached))
                    continue
                if not server.concurrency.in_flight:
                    server.heard = now
                epoch = server.concurrency.enter()
                task = asyncio.create_task(self._run(server, call, epoch))
                task.add_done_callback(partial(self._back, server, call, epoch))
                self._running[call] = task

    async def _run(self, server: _Server, call: ServerCall, epoch: int) -> tuple[float, int]:
        """Sends one request, and does what follows from how that ends.

        Gives seconds and tokens of one that was answered.
        """
        begun, server.latest = time.monotonic(), call
        try:
            await call.send(server.connection)
            if isinstance(call, SampleCall) and call.streams and server.latest is not call:
                server.enders.clear()
            measured = time.monotonic() - begun, max(1, call.billed.sampled)
            self._answered(server)
            self._keep(call)
            taken = self._note(call, requests=1)
            self._leave(call)
            call.finish(taken)
            return measured
        except asyncio.CancelledError:
            self._note(call, requests=1)
            raise
        except Unreachable as error:
            self._note(call, requests=1)
            self._again(server, call, error, epoch, begun)
        except (Refused, EngineError) as error:
            self._note(call, requests=1)
            self._answered(server)
            words = server.connection.without_key(str(error))
            if isinstance(error, Refused) and error.is_bad_request:
                self._fail(call, RequestRefused(words, error.param))
            else:
                self._fail(call, EngineError(words))
        except Exception as error:
            self._failure = error
        return 0.0, 0

    def _back(self, server: _Server, call: ServerCall, epoch: int, task: asyncio.Task[tuple[float, int]]) -> None:
        """A request is back, or was given up."""
        server.concurrency.leave(epoch, *((0.0, 0) if task.cancelled() else task.result()))
        server.queue.returned(call)
        if self._running.get(call) is task:
            del self._running[call]
        self._wake()

    def _again(self, server: _Server, call: ServerCall, error: Unreachable, epoch: int, sent: float) -> None:
        """The request, which was sent at `sent`, goes again after a while, if it may."""
        # The server answers, another request than this one; one that it ends again and again is at fault itself.
        by_others = error.ended and server.latest is not call and call.attempts < _ENDED_BY_OTHERS
        if error.overloaded:
            server.concurrency.overloaded(epoch)
        elif error.status is None:
            server.concurrency.lost()
        if by_others:
            self._ended_by_others(server)
        elif server.latest is call:
            server.enders.clear()
        call.attempts += 1
        # In an outage, or among others, it is not to blame.
        if not (error.absent or error.overloaded or by_others):
            if call.faults == 0:
                call.answers = server.retries.answers
            call.faults += 1
        faults = call.faults if server.retries.answers > call.answers else 0
        server.failure = server.connection.without_key(str(error))
        try:
            wait = 0.0 if by_others else server.retries.wait(error, call.attempts, faults, sent)
        except ServerGone as last:
            gone = ServerGone(server.connection.without_key(str(last)))
            if self._outlives:
                self._give_up(server, call, gone)
            else:
                self._failure = gone
            return
        except EngineError as reason:
            self._fail(call, EngineError(server.connection.without_key(str(reason))))
            return
        if error.retry_after is not None:
            server.not_before = max(server.not_before, time.monotonic() + error.retry_after)
        call.not_before = time.monotonic() + wait
        if self._wanted(call):
            server.queue.put(call)
            asyncio.get_running_loop().call_later(wait, self._wake)

    def _ended_by_others(self, server: _Server) -> None:
        """A stream ended before its answer, after another request had come: some servers have one stream at a time."""
        assert server.latest is not None
        if len(server.enders) == _ENDED_BY_OTHERS:
            return
        server.enders.add(server.latest)
        if len(server.enders) == _ENDED_BY_OTHERS:
            server.concurrency.one_at_a_time()
            if self._tell is not None:
                url = server.connection.url
                self._tell(f"{url} ends an answer when another request comes, so it gets one at a time from now on")

    def _give_up(self, server: _Server, call: ServerCall, gone: ServerGone) -> None:
        """Fails a request, and all that wait for the same server."""
        for waiting in (call, *list(server.queue)):
            server.queue.remove(waiting)
            self._fail(waiting, gone)

    def _answered(self, server: _Server) -> None:
        server.retries.answered()
        server.concurrency.found()
        server.heard = time.monotonic()

    def _replayed(self, call: ServerCall) -> bool:
        """Whether the store had the answer to it."""
        kept = None if self._store is None else self._store.find(call.key)
        self._look_at_store()
        try:
            if kept is None or not call.replay(kept):
                return False
        except EngineError:
            return False
        taken = self._note(call, replayed=1)
        self._leave(call)
        call.finish(taken)
        return True

    def _keep(self, call: ServerCall) -> None:
        if self._store is not None:
            self._store.keep(call.key, json.dumps(call.record, separators=(",", ":")).encode())
            self._look_at_store()

    def _look_at_store(self) -> None:
        if self._store is not None and self._store.failure is not None and not self._told:
            self._told = True
            if self._tell is not None:
                self._tell(self._store.failure)

    def _note(self, call: ServerCall, requests: int = 0, replayed: int = 0) -> Calls:
        """Counts what a request took, or would have taken. Attempts are counted one by one for the model."""
        billed, name = call.billed, call.model.address.name
        cost = 0.0
        if requests:
            cost = self._meter.note(name, billed.prompt or 0, billed.cached, billed.sampled)
        again = int(call.attempts > 0 and requests > 0)
        taken = Calls(requests, again, replayed, billed.prompt, billed.cached, billed.sampled, cost)
        self._spent[call.model.id] += taken
        return replace(taken, requests=call.attempts + 1, retries=call.attempts) if requests else taken

    async def _read(self, ticket: Ticket, asked: _Asked) -> None:
        """Serves a request that draws nothing."""
        request, model = ticket.request.reading, asked.model
        assert request is not None
        try:
            completion = await scored(request, model.capabilities, model.address, partial(self._reading, ticket, asked))
        except EngineError as error:
            self._asked.pop(ticket, None)
            ticket.fail(error)
        except Exception as error:
            self._failure = error
            self._wake()
        else:
            self._asked.pop(ticket, None)
            ticket.finish(completion)

    async def _reading(self, ticket: Ticket, asked: _Asked, reading: Question) -> tuple[Values, Calls]:
        """Sends one reading, or finds what was kept of it. Raises EngineError."""
        request, model = ticket.request, asked.model
        key = request_key(model.address, model.capabilities.version, reading.path, reading.body, ["reading"])
        result: asyncio.Future[tuple[Values, Calls]] = asyncio.get_running_loop().create_future()
        place = (request.client, asked.priority, prefix_of(request.tokens))
        call = ReadingCall(*place, model=model, key=key, reading=reading, result=result)
        if not self._replayed(call):
            asked.calls[call] = None
            self._server(model).queue.put(call)
            self._wake()
        try:
            return await result
        finally:
            asked.calls.pop(call, None)
            self._drop(call)

    def _server(self, model: ModelAtServer) -> _Server:
        return self._servers[model.address.url]

    def _wanted(self, call: ServerCall) -> bool:
        """Whether anybody waits for it still."""
        if isinstance(call, SampleCall):
            return call.ticket in self._asked and call in self._asked[call.ticket].calls
        assert isinstance(call, ReadingCall)
        return not call.result.done()

    def _leave(self, call: ServerCall) -> None:
        """It is answered. The ticket hears of it next; whoever waits for it may submit at once."""
        if isinstance(call, SampleCall):
            call.begun()
            asked = self._asked.get(call.ticket)
            if asked is not None:
                asked.calls.pop(call, None)
                if not asked.calls:
                    del self._asked[call.ticket]

    def _fail(self, call: ServerCall, error: EngineError) -> None:
        """A request cannot be served, and with it what it is part of."""
        if isinstance(call, SampleCall):
            if call.ticket in self._asked:
                self._cancel(call.ticket)
                call.ticket.fail(error)
        elif isinstance(call, ReadingCall) and not call.result.done():
            call.result.set_exception(error)

    def _cancel(self, ticket: Ticket) -> None:
        """Closes what is under way of a request, and forgets the rest."""
        asked = self._asked.pop(ticket, None)
        if asked is None:
            return
        if asked.task is not None:
            asked.task.cancel()
        for call in list(asked.calls):
            self._drop(call)

    def _drop(self, call: ServerCall) -> None:
        self._server(call.model).queue.remove(call)
        task = self._running.get(call)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _promote(self, ticket: Ticket) -> None:
        if (asked := self._asked.get(ticket)) is not None:
            asked.priority = 0
            for call in asked.calls:
                self._server(call.model).queue.promote(call)

    def _wake(self) -> None:
        if self._woken is not None:
            self._woken.set()

    async def _stop(self) -> None:
        """Ends all tasks and closes all connections; what was asked stands as new."""
        self._woken = None
        tasks = [*self._running.values(), *(asked.task for asked in self._asked.values() if asked.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.clear()
        for server in self._servers.values():
            for call in list(server.queue):
                server.queue.remove(call)
            await server.connection.close()
        for asked in self._asked.values():
            asked.task = None
        self._new = list(self._asked)


def _nothing() -> None:
    return None
