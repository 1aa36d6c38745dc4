"""What is told of a model on a server while it is asked: what is there, what waits and why, once it begins to wait."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx

from qpdsl.executor.remote import remote_engine
from qpdsl.executor.remote.remote_engine import RemoteCounts, RemoteEngine
from tests.support.remote.scripted_server import Body, ScriptedServer, answer, driven, until, wanted


def test_a_wait_is_told_when_it_begins_and_what_for(monkeypatch: Any) -> None:
    monkeypatch.setattr(remote_engine, "_REPORT_EVERY", 0.0)
    told: list[RemoteCounts] = []

    def script(body: Body, number: int) -> Body | httpx.Response:
        busy = httpx.Response(429, headers={"retry-after": "0.2"}, text="too many")
        return busy if number == 0 else answer("7", sampled=3)

    async def use(engine: RemoteEngine) -> None:
        ticket = engine.submit("llm", wanted())
        await until(lambda: bool(told) and told[-1].again == 1)
        assert not ticket.done
        waiting = told[-1]
        assert waiting.why is not None and "429" in waiting.why and (waiting.in_flight, waiting.queued) == (0, 1)
        assert 0 < waiting.resumes < 2 and 0 <= waiting.failing < 2 and waiting.calls.retries == 0
        await ticket
        await until(lambda: told[-1].calls.requests == 2)

    driven(ScriptedServer(script), use, on_report=lambda model, counts: told.append(counts))
    last = told[-1]
    assert (last.again, last.why, last.in_flight, last.queued) == (0, None, 0, 0)
    assert (last.calls.requests, last.calls.retries, last.calls.sampled_tokens) == (2, 1, 3)


def test_an_answer_to_any_request_ends_the_outage_for_those_that_wait(monkeypatch: Any) -> None:
    monkeypatch.setattr(remote_engine, "_REPORT_EVERY", 0.0)
    # What failed waits for longer than the test takes.
    monkeypatch.setattr(random.Random, "uniform", lambda *bounds: 600.0)
    told: list[RemoteCounts] = []

    def script(body: Body, number: int) -> Body | httpx.Response:
        return httpx.Response(503) if number == 0 else answer("7")

    async def use(engine: RemoteEngine) -> None:
        waiting = engine.submit("llm", wanted("1?"))
        await until(lambda: bool(told) and told[-1].again == 1)
        assert told[-1].why is not None and "503" in told[-1].why and told[-1].failing
        await engine.submit("llm", wanted("2?"))
        await until(lambda: told[-1].calls.requests == 2)
        assert told[-1].again == 1 and not told[-1].failing and not waiting.done

    driven(ScriptedServer(script), use, on_report=lambda model, counts: told.append(counts))


def test_a_server_that_took_a_request_and_gives_no_token_is_told(monkeypatch: Any) -> None:
    monkeypatch.setattr(remote_engine, "_REPORT_EVERY", 0.0)
    monkeypatch.setattr(remote_engine, "_WAITING_EVERY", 0.02)
    monkeypatch.setattr(remote_engine, "_QUIET", 0.1)
    told: list[RemoteCounts] = []

    gate = asyncio.Event()

    async def script(body: Body, number: int) -> Body:
        await gate.wait()
        return answer("7")

    async def use(engine: RemoteEngine) -> None:
        ticket = engine.submit("llm", wanted())
        await until(lambda: bool(told) and told[-1].quiet > 0.2)
        assert told[-1].in_flight == 1 and told[-1].why is None
        gate.set()
        await ticket
        await until(lambda: told[-1].in_flight == 0)

    driven(ScriptedServer(script), use, on_report=lambda model, counts: told.append(counts))
    assert told[-1].quiet == 0


def test_reports_are_few_however_many_requests_there_are() -> None:
    told: list[RemoteCounts] = []

    async def use(engine: RemoteEngine) -> None:
        await asyncio.gather(*(_wait(engine.submit("llm", wanted(f"{number}?"))) for number in range(200)))

    server = ScriptedServer(lambda body, number: answer("7"))
    driven(server, use, on_report=lambda model, counts: told.append(counts))
    assert told[-1].calls.requests == 200 and len(told) < 60


async def _wait(ticket: Any) -> None:
    await ticket
