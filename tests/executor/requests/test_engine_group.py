"""Several engines as one."""

from __future__ import annotations

import asyncio

import pytest

from qpdsl.executor.requests.engine import Capabilities, EngineGroup
from qpdsl.executor.requests.request import Client, GenerateRequest, Request, SamplingParams
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.runtime.instance.request_cache import ClientEngine


class Plain:
    """An engine that serves nothing, and ends as it is told."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.asked: list[tuple[str, Request]] = []
        self.driven = 0
        self._failure = failure

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(frozenset())

    def submit(self, model: str, request: Request) -> Ticket:
        self.asked.append((model, request))
        return Ticket(request, lambda ticket: None)

    def busy(self, model: str) -> int:
        return len(self.asked)

    async def drive(self) -> None:
        self.driven += 1
        try:
            if self._failure is not None:
                raise self._failure
            await asyncio.Event().wait()
        finally:
            self.driven -= 1


def test_each_model_is_asked_where_it_is() -> None:
    here, there = Plain(), Plain()
    group = EngineGroup(here)
    group.place("b", there)
    client, request = Client("row", 3, 7.0), GenerateRequest((1,), (2,), SamplingParams(), 4)
    for model in ("a", "b", "b"):
        ClientEngine(group, client).submit(model, request)
    assert [model for model, _ in here.asked] == ["a"] and [model for model, _ in there.asked] == ["b", "b"]
    assert [asked.client for _, asked in (*here.asked, *there.asked)] == [client] * 3
    assert group.busy("b") == 2


@pytest.mark.parametrize("first", [True, False])
def test_one_that_fails_ends_the_others(first: bool) -> None:
    failing, other = Plain(ValueError("broken")), Plain()
    group = EngineGroup(failing if first else other)
    group.place("b", other if first else failing)
    with pytest.raises(ValueError, match="broken"):
        asyncio.run(group.drive())
    assert failing.driven == other.driven == 0


def test_who_is_cancelled_cancels_all() -> None:
    async def driven() -> None:
        task = asyncio.create_task(group.drive())
        await asyncio.sleep(0.01)
        assert [engine.driven for engine in engines] == [1, 1]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    engines = Plain(), Plain()
    group = EngineGroup(engines[0])
    group.place("b", engines[1])
    asyncio.run(driven())
    assert [engine.driven for engine in engines] == [0, 0]
