"""What becomes of replicas that do not load, or do not end, by replicas without processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from qpdsl.cluster.backends.backend import ReplicaLost
from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.fleet import Fleet, ReplicaFigures
from qpdsl.cluster.replica.messages import Command, Ready, ReplicaMessage, ReplicaSetup
from qpdsl.errors import LoadError
from qpdsl.executor.events.stream import EventStream
from qpdsl.session.settings import SessionSettings


class Link:
    """A replica that is ready unless it `fails`, and then does nothing, whatever it is told."""

    def __init__(self, name: str, build: str, fails: bool) -> None:
        self._name = name
        self._build = build
        self._fails = fails
        self._said = False

    def send(self, command: Command) -> None:
        pass

    async def receive(self) -> ReplicaMessage:
        if self._fails:
            raise ReplicaLost(f"{self._name} ended with exit code 1")
        if self._said:
            await asyncio.Event().wait()
        self._said = True
        return Ready("here", 1, {"build": self._build}, 0.0)

    async def close(self) -> None:
        pass


@dataclass
class Backend:
    """`failing` says whether the replica of that number fails, by how many were started before."""

    failing: Callable[[int], bool]
    started: int = 0

    async def start(self, name: str, number: int, setup: ReplicaSetup) -> Link:
        self.started += 1
        return Link(name, setup.build, self.failing(self.started - 1))

    async def close(self) -> None:
        pass


@dataclass
class Work:
    """Nothing to do, until the fleet is stopped."""

    finished: bool = False
    waiting: int = 0
    idle: list[str] = field(default_factory=list)

    def expect(self, replicas: int) -> None:
        pass

    def joined(self, figures: ReplicaFigures) -> None:
        self.idle.append(figures.name)

    def heard(self, figures: ReplicaFigures, clock: float, message: ReplicaMessage) -> None:
        pass

    def left(self, figures: ReplicaFigures) -> str:
        self.idle.remove(figures.name)
        return ""


def run(
    address: str, backend: Backend, test: Callable[[Fleet, Work], Coroutine[Any, Any, None]], count: int = 2
) -> None:
    async def running() -> None:
        work = Work()
        setup = ReplicaSetup.of(None, SessionSettings())
        how: dict[str, Any] = {"allow_mixed": None, "backend": backend, "idle_seconds": 0.0}
        fleet = Fleet(ClusterAddress.parse(address), setup, (), work, EventStream(), **how)
        async with asyncio.timeout(20):
            going = asyncio.create_task(fleet.run(count))
            watching = asyncio.create_task(test(fleet, work))
            await asyncio.wait((going, watching), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
                work.finished = True
                fleet.stop_all()
            watching.cancel()
            await going

    asyncio.run(running())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpdsl.cluster.fleet._SECONDS_TO_STOP", 0.05)
    monkeypatch.setattr("qpdsl.cluster.fleet._SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr("qpdsl.cluster.fleet._LONGEST_PAUSE", 0.01)


def test_one_that_is_ready_goes_on_while_others_do_not_load_and_they_are_tried_again() -> None:
    async def test(fleet: Fleet, work: Work) -> None:
        while fleet.counts() != (2, 0):
            await asyncio.sleep(0.01)

    backend = Backend(lambda number: 0 < number < 6)
    run("local:2", backend, test)
    assert backend.started == 7


def test_none_that_loads_ends_it() -> None:
    async def test(fleet: Fleet, work: Work) -> None:
        await asyncio.Event().wait()

    with pytest.raises(LoadError, match="3 replicas were lost one after another while they loaded"):
        run("local:1", Backend(lambda number: True), test, 1)


def test_one_that_hangs_when_it_is_to_end_is_not_waited_for() -> None:
    async def test(fleet: Fleet, work: Work) -> None:
        while len(work.idle) != 1:
            await asyncio.sleep(0.01)

    run("local:1..2", Backend(lambda number: False), test)
