"""Requests to a server as the work of a replica: each is read and answered by the models that the server offers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from qpdsl.cluster.replica.messages import Command, ReplicaMessage, Stop
from qpdsl.cluster.replica.replica import portable
from qpdsl.grammar.model_id import is_remote
from qpdsl.serve.completion_request import CompletionRequest
from qpdsl.serve.http.admission_control import pause_of
from qpdsl.serve.http.request_reader import RequestReader
from qpdsl.serve.offered_models import Offer
from qpdsl.serve.served_model import CompletionResponse, Delta, Progress

if TYPE_CHECKING:
    from qpdsl.executor.models.text_model import TextModel
    from qpdsl.executor.models.unloaded_model import ModelFacts
    from qpdsl.session.session import Session

Update = Delta | Progress | CompletionResponse
# The door lets no more in.
_MAX_WAITING = 1 << 20


@dataclass(frozen=True, slots=True)
class AskModel(Command):
    """A request to a model by its name, of about `size` bytes, whose answer `streams` or comes whole.

    `number` tells it from others. Its deadline is on the replica's clock.
    """

    number: int
    model: str
    request: CompletionRequest
    size: int
    streams: bool


@dataclass(frozen=True, slots=True)
class DropRequest(Command):
    """Nobody waits for the answer any more."""

    number: int


@dataclass(frozen=True, slots=True)
class ModelsKnown(ReplicaMessage):
    """The replica takes requests; `facts` has what is known of its models, by their ids."""

    facts: Mapping[str, ModelFacts]


@dataclass(frozen=True, slots=True)
class RequestUpdated(ReplicaMessage):
    """The next piece of an answer; a `CompletionResponse` is the last one."""

    number: int
    update: Update


@dataclass(frozen=True, slots=True)
class RequestFailed(ReplicaMessage):
    """Why there is no answer, or no more of it."""

    number: int
    error: Exception


@dataclass(frozen=True)
class RequestWork:
    """A `ReplicaWork`."""

    offer: Offer

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(model for plan in self.offer.plans for model in plan.models.values()))

    def load(self, session: Session, loaded: Callable[[TextModel, float], None]) -> None:
        """See `ReplicaWork`."""
        for plan in self.offer.plans:
            session.load(plan, loaded)

    def begin(self, session: Session, send: Callable[[ReplicaMessage], None]) -> _Requests:
        return _Requests(self, session, send)


@dataclass
class _Requests:
    work: RequestWork
    session: Session
    send: Callable[[ReplicaMessage], None]
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._models = {model.name: model for model in self.work.offer.models(self.session)}
        self._reader = RequestReader(_MAX_WAITING)
        self._stopped = asyncio.Event()

    def tell(self, command: Command) -> None:
        match command:
            case AskModel(number=number):
                task = self._tasks[number] = asyncio.create_task(self._answer(command))
                task.add_done_callback(lambda _: self._tasks.pop(number, None))
            case DropRequest(number=number):
                if number in self._tasks:
                    self._tasks[number].cancel()
            case Stop():
                self._stopped.set()

    async def run(self) -> None:
        from qpdsl.executor.models.unloaded_model import ModelFacts

        session = self.session
        here = [session.text_model(id) for id in self.work.models if not is_remote(id)]
        self.send(ModelsKnown({one.name: ModelFacts.of(one, session.engine.capabilities(one.name)) for one in here}))
        await self._stopped.wait()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, ask: AskModel) -> None:
        try:
            reading = partial(self._models[ask.model].read, ask.request)
            prepared = await self._reader.read(ask.request.client.owner, ask.size, reading)
            if not ask.streams:
                self.send(RequestUpdated(ask.number, await prepared.answer()))
                return
            async with contextlib.aclosing(prepared.stream(lambda: pause_of(len(self._tasks)))) as updates:
                async for update in updates:
                    self.send(RequestUpdated(ask.number, update))
        except Exception as error:
            self.send(RequestFailed(ask.number, portable(error)))
