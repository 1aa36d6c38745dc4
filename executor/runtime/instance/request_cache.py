"""The request cache: requests for a large model wait, and go to it as one batch (CALID, section 2.2).

It is shared by all instances of a run. Rows that the small model is unsure of wait here while others are still in its
hands; a batch goes once enough of them wait, once the first has waited for long enough, or once no row is left that
could still join them. When a request is sent changes no token: noise depends on the row and the place alone.

`ClientEngine` is the engine as one instance sees it: all that it submits is known to be its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from qpdsl.executor.requests.engine import Capabilities, Engine
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Client, Request
from qpdsl.executor.requests.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Flush:
    """When a batch goes, if nothing that could join it is under way any more: at so many rows, after so long."""

    rows: int
    seconds: float


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request, and what is told where it is sent: its ticket, and the size of the batch that it was sent in."""

    engine: Engine
    request: Request
    sent: asyncio.Future[tuple[Ticket, int]]


@dataclass(eq=False)
class _Queue:
    """The requests that wait for one large model, and how many rows are in the hands of a small one."""

    waiting: list[_Waiting] = field(default_factory=list)
    working: int = 0
    timer: asyncio.TimerHandle | None = None


class RequestCache:
    """Sends requests to an engine in batches, model by model."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queues: dict[str, _Queue] = {}

    def through(self, engine: Engine) -> RequestCache:
        """The same queues for requests that go to `engine`, which stands for this one, as of one instance."""
        other = RequestCache(engine)
        other._queues = self._queues
        return other

    @contextmanager
    def working(self, model: str) -> Iterator[None]:
        """While the block runs there is a row that a small model works at, and that may yet ask for `model`."""
        queue = self._queue(model)
        queue.working += 1
        try:
            yield
        finally:
            queue.working -= 1
            self._look(model)

    async def sent(self, model: str, request: Request, flush: Flush) -> tuple[Ticket, int]:
        """The ticket of a request that may wait, once it is sent, and the size of its batch. Raises EngineError."""
        queue, loop = self._queue(model), asyncio.get_running_loop()
        waiting = _Waiting(self._engine, request, loop.create_future())
        queue.waiting.append(waiting)
        if len(queue.waiting) >= flush.rows:
            self._send(model)
        elif queue.timer is None:
            queue.timer = loop.call_later(flush.seconds, self._send, model)
        self._look(model)
        try:
            return await waiting.sent
        except asyncio.CancelledError:
            self._give_up(queue, waiting)
            raise

    def _queue(self, model: str) -> _Queue:
        return self._queues.setdefault(model, _Queue())

    def _look(self, model: str) -> None:
        """Sends what waits, if nobody works any more. First those rows have their turn that ended with this one."""
        queue = self._queue(model)
        if queue.waiting and not queue.working:
            asyncio.get_running_loop().call_soon(self._send_unless_working, model)

    def _send_unless_working(self, model: str) -> None:
        if not self._queue(model).working:
            self._send(model)

    def _send(self, model: str) -> None:
        queue = self._queue(model)
        batch, queue.waiting = queue.waiting, []
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        for waiting in batch:
            if waiting.sent.done():
                continue
            try:
                waiting.sent.set_result((waiting.engine.submit(model, waiting.request), len(batch)))
            except EngineError as error:
                waiting.sent.set_exception(error)

    def _give_up(self, queue: _Queue, waiting: _Waiting) -> None:
        if waiting in queue.waiting:
            queue.waiting.remove(waiting)
        elif waiting.sent.done() and not waiting.sent.cancelled() and waiting.sent.exception() is None:
            # It was sent in the turn in which nobody waited for it any more.
            waiting.sent.result()[0].cancel()
        if not queue.waiting and queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None


class ClientEngine:
    """An `Engine` that puts a client on every request. Somebody else drives the engine behind it."""

    def __init__(self, engine: Engine, client: Client) -> None:
        self._engine = engine
        self._client = client

    def capabilities(self, model: str) -> Capabilities:
        return self._engine.capabilities(model)

    def submit(self, model: str, request: Request) -> Ticket:
        return self._engine.submit(model, replace(request, client=self._client))

    def busy(self, model: str) -> int:
        return self._engine.busy(model)

    async def drive(self) -> None:
        await self._engine.drive()
