"""Where requests are placed, and what becomes of them, by replicas without processes that do what a test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")

from qpdsl.cluster.backends.backend import ReplicaLost
from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.replica.messages import Command, Ended, Failed, Ready, ReplicaMessage, ReplicaSetup, Stop
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.requests.request import Client
from qpdsl.serve.completion_request import CompletionRequest, Refusal
from qpdsl.serve.offered_models import Offer
from qpdsl.serve.replicas.replica_pool import ReplicaPool
from qpdsl.serve.replicas.request_work import (
    AskModel,
    DropRequest,
    ModelsKnown,
    RequestFailed,
    RequestUpdated,
    RequestWork,
)
from qpdsl.serve.served_model import CompletionChoice, CompletionResponse, Delta, TokenUsage
from qpdsl.session.settings import SessionSettings

WHOLE = CompletionResponse((CompletionChoice("done"),), TokenUsage(1, 2))


@dataclass
class Link:
    """A replica that is ready at once, and has what it was sent in `got`."""

    name: str
    got: list[Command] = field(default_factory=list)
    messages: asyncio.Queue[ReplicaMessage | None] = field(default_factory=asyncio.Queue)

    def send(self, command: Command) -> None:
        self.got.append(command)
        if isinstance(command, Stop):
            self.messages.put_nowait(Ended({}))

    async def receive(self) -> ReplicaMessage:
        if (message := await self.messages.get()) is None:
            raise ReplicaLost(f"{self.name} was ended by SIGKILL")
        return message

    async def close(self) -> None:
        self.got.append(Stop())

    @property
    def asked(self) -> list[int]:
        """The requests that it was asked and that were not given up."""
        dropped = {command.number for command in self.got if isinstance(command, DropRequest)}
        return [
            command.number for command in self.got if isinstance(command, AskModel) and command.number not in dropped
        ]

    def say(self, *messages: ReplicaMessage | None) -> None:
        for message in messages:
            self.messages.put_nowait(message)


@dataclass
class Backend:
    links: list[Link] = field(default_factory=list)

    async def start(self, name: str, number: int, setup: ReplicaSetup) -> Link:
        link = Link(name)
        link.say(Ready("here", 1, {"build": setup.build}, 0.0), ModelsKnown({}))
        self.links.append(link)
        return link

    async def close(self) -> None:
        pass


@dataclass
class Case:
    pool: ReplicaPool
    links: list[Link]
    notes: list[str]

    def ask(self, key: bytes | None = None, client: Client | None = None) -> asyncio.Task[list[Any]]:
        """What comes of a request: its updates, or the last of them an error."""
        request = CompletionRequest("chat", {}, client=client or Client())

        async def updates() -> list[Any]:
            found: list[Any] = []
            async with contextlib.aclosing(self.pool.updates("m", request, key, 0, streams=True)) as coming:
                try:
                    async for update in coming:
                        found.append(update)
                except Refusal as refusal:
                    found.append(refusal)
            return found

        return asyncio.create_task(updates())


def case(test: Callable[[Case], Awaitable[None]], address: str = "local:2", places: int = 4) -> None:
    async def run() -> None:
        backend, notes, offer = Backend(), [], Offer({}, {}, {})
        setup = ReplicaSetup.of(RequestWork(offer), SessionSettings())
        how: dict[str, Any] = {"places": places, "tell": notes.append, "backend": backend}
        pool = ReplicaPool(ClusterAddress.parse(address), offer, setup, EventStream(), **how)
        async with asyncio.timeout(20), pool.running():
            await turns()
            await test(Case(pool, backend.links, notes))
        assert all(isinstance(link.got[-1], Stop) for link in backend.links)

    asyncio.run(run())


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_one_beginning_goes_to_one_replica_until_it_has_more_than_its_share() -> None:
    async def test(case: Case) -> None:
        case.ask(b"a")
        await turns()
        home, other = sorted(case.links, key=lambda link: -len(link.asked))
        home.say(RequestUpdated(home.asked[0], WHOLE))
        await turns()
        for _ in range(8):
            case.ask(b"a")
        await turns()
        # Of eight requests a replica has at most 1.25 times the half.
        assert (len(home.asked) - 1, len(other.asked)) == (5, 3)

    case(test)


def test_many_beginnings_use_all_replicas_and_a_short_one_goes_where_least_is_to_do() -> None:
    async def test(case: Case) -> None:
        for number in range(40):
            case.ask(b"%d" % number)
        await turns()
        counts = [len(link.asked) for link in case.links]
        assert sum(counts) == 40 and min(counts) >= 10
        case.ask()
        await turns()
        assert len(case.links[counts.index(min(counts))].asked) == min(counts) + 1

    case(test)


def test_a_lost_replicas_requests_go_on_where_their_clients_are() -> None:
    async def test(case: Case) -> None:
        asked = case.ask()
        await turns()
        (first,) = [link for link in case.links if link.asked]
        (second,) = [link for link in case.links if link is not first]
        number = first.asked[0]
        ids = {"token_ids": [1, 2]}
        first.say(
            RequestUpdated(number, Delta(0, "ab", extra=ids)), RequestUpdated(number, Delta(1, "", thought="hm")), None
        )
        await turns()
        assert second.asked == [number] and case.pool.resent == 1
        assert any("was ended by SIGKILL; 1 request asked again" in note for note in case.notes)
        # The same in other pieces.
        second.say(RequestUpdated(number, Delta(0, "a", extra={"token_ids": [1]})))
        second.say(RequestUpdated(number, Delta(1, "x", thought="hmm")))
        second.say(
            RequestUpdated(number, Delta(0, "bcd", extra={"token_ids": [2, 3, 4]})), RequestUpdated(number, WHOLE)
        )
        assert await asked == [
            Delta(0, "ab", extra=ids),
            Delta(1, "", thought="hm"),
            Delta(1, "x", thought="m"),
            Delta(0, "cd", extra={"token_ids": [3, 4]}),
            WHOLE,
        ]
        assert len(case.links) == 3 and case.pool.counts == (2, 0)

    case(test)


def test_a_request_that_loses_three_replicas_fails_alone() -> None:
    async def test(case: Case) -> None:
        asked = case.ask()
        for _ in range(3):
            await turns()
            (link,) = [link for link in case.links if link.asked and not isinstance(link.got[-1], Stop)]
            link.say(None)
        (refusal,) = await asked
        assert (refusal.status, refusal.code) == (503, "replica_lost")
        assert ["0 requests asked again" in note for note in case.notes] == [False, False, True]
        other = case.ask()
        await turns()
        (link,) = [link for link in case.links if link.asked and not isinstance(link.got[-1], Stop)]
        link.say(RequestFailed(link.asked[-1], Refusal("no", status=422)))
        assert [refusal.message for refusal in await other] == ["no"]

    case(test)


def test_it_waits_while_no_replica_is_ready() -> None:
    async def test(case: Case) -> None:
        case.links[0].say(None)
        await asyncio.sleep(0)
        asked = case.ask(client=Client(deadline=1e9))
        await turns()
        link = case.links[-1]
        (ask,) = [command for command in link.got if isinstance(command, AskModel)]
        # The replica's clock began later than this one.
        assert ask.request.client.deadline is not None and ask.request.client.deadline < 1e9
        link.say(RequestUpdated(ask.number, WHOLE))
        assert await asked == [WHOLE]

    case(test, "local:1")


def test_who_goes_away_is_not_worked_for() -> None:
    async def test(case: Case) -> None:
        asked = case.ask()
        await turns()
        (link,) = [link for link in case.links if link.asked]
        asked.cancel()
        await turns()
        assert link.asked == [] and case.pool.idle == ["replica 1", "replica 2"]

    case(test)


def test_who_goes_away_while_its_replica_is_lost_is_asked_of_no_other() -> None:
    async def test(case: Case) -> None:
        asked = case.ask()
        await turns()
        (link,) = [link for link in case.links if link.asked]
        link.say(None)
        asked.cancel()
        await turns()
        assert all(link.asked == [] for link in case.links[1:] if link.got) and case.pool.waiting == 0
        assert len(case.pool.idle) == 2

    case(test)


def test_another_replica_comes_while_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpdsl.cluster.fleet._SECONDS_BETWEEN_LOOKS", 0.01)

    async def test(case: Case) -> None:
        for _ in range(2):
            case.ask()
        await asyncio.sleep(0.05)
        assert case.pool.counts == (1, 0)
        case.ask()
        while case.pool.counts != (2, 0):
            await asyncio.sleep(0.01)
        assert any("one more replica" in note for note in case.notes)

    case(test, "local:1..2")


def test_what_every_replica_would_meet_ends_the_server() -> None:
    async def test(case: Case) -> None:
        case.links[0].say(Failed(RuntimeError("the engine is broken")))
        await asyncio.sleep(10)

    with pytest.raises(RuntimeError, match="the engine is broken"):
        case(test)
