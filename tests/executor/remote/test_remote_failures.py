"""What follows where a server fails, refuses, stays away, or gives an answer that makes no sense."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from qpdsl import zoo
from qpdsl.executor.remote.remote_engine import RemoteEngine
from qpdsl.executor.requests.errors import EngineError, ServerGone
from qpdsl.executor.requests.request import (
    Completion,
)
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.text.stop import StopWatch
from tests.support.remote.scripted_requests import IDS, by_seed, one, piece, text_of
from tests.support.remote.scripted_server import (
    ADDRESS,
    CAPABILITIES,
    Body,
    Pieces,
    ScriptedServer,
    answer,
    driven,
    model_of,
    wanted,
)

pytestmark = pytest.mark.usefixtures("soon")


@pytest.mark.parametrize(
    "failure",
    [
        httpx.Response(500, text="oops"),
        httpx.Response(503),
        httpx.Response(200, headers={"content-type": "application/json"}, content=b'{"choices": [{"te'),
        httpx.Response(200, json={"choices": [{"text": " It", "finish_reason": None}]}),
        httpx.Response(200, json={"error": {"message": "CUDA ran out of luck", "code": 500}}),
        httpx.ReadError("reset by peer"),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout(""),
    ],
)
def test_what_passes_is_asked_again(failure: httpx.Response | Exception) -> None:
    server = ScriptedServer(lambda body, number: failure if number < 2 else by_seed(body, number))
    completion = driven(server, one(wanted()))
    assert server.bodies[0] == server.bodies[1] == server.bodies[2]
    assert (completion.calls.requests, completion.calls.retries) == (3, 2)


def test_the_server_says_when_to_come_again() -> None:
    late = httpx.Response(429, headers={"retry-after": "0.3"})
    server = ScriptedServer(lambda body, number: late if number == 0 else by_seed(body, number))

    async def use(engine: RemoteEngine) -> float:
        begun = time.monotonic()
        first = engine.submit("llm", wanted())
        await asyncio.sleep(0.05)
        # Another request does not go before that either.
        await engine.submit("llm", wanted("another"))
        await first
        return time.monotonic() - begun

    assert driven(server, use) >= 0.3


def test_a_storm_of_refusals_is_ridden_out() -> None:
    def script(body: Body, number: int) -> httpx.Response | Body:
        return httpx.Response(429) if number < 60 else by_seed(body, number)

    server = ScriptedServer(script)
    completion = driven(server, one(wanted(keys=tuple(range(30)))))
    assert len(completion.samples) == 30 and completion.calls.retries == 60


def test_what_the_server_refuses_is_said_in_its_words() -> None:
    def script(body: Body, number: int) -> httpx.Response | Body:
        if body["prompt"] == "long":
            return httpx.Response(400, json={"error": {"message": "maximum context length is 1024"}})
        return by_seed(body, number)

    server = ScriptedServer(script)

    async def use(engine: RemoteEngine) -> None:
        other = engine.submit("llm", wanted())
        with pytest.raises(EngineError, match="answered 400: maximum context length is 1024"):
            await engine.submit("llm", wanted("long", (1, 2, 3)))
        assert len((await other).samples) == 1
        assert engine.busy("llm") == 0

    driven(server, use)


def test_a_request_that_alone_fails_does_not_end_the_run() -> None:
    def script(body: Body, number: int) -> httpx.Response | Body:
        return httpx.Response(500, text="no such luck") if body["prompt"] == "bad" else by_seed(body, number)

    server = ScriptedServer(script)

    async def use(engine: RemoteEngine) -> None:
        bad = engine.submit("llm", wanted("bad"))

        async def others() -> None:
            while True:
                await engine.submit("llm", wanted())
                await asyncio.sleep(0.01)

        task = asyncio.create_task(others())
        with pytest.raises(EngineError, match=r"no such luck; it failed \d+ times while other requests"):
            await bad
        task.cancel()

    driven(server, use)


def test_an_outage_is_no_request_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are answered once in a while, and those that met no server go on, however often they did."""
    monkeypatch.setattr("qpdsl.executor.remote.server.failures._LONGEST", 0.01)

    def script(body: Body, number: int) -> Exception | Body:
        return by_seed(body, number) if number % 15 == 14 else httpx.ConnectError("refused")

    completion = driven(ScriptedServer(script), one(wanted(keys=tuple(range(6)))))
    assert len(completion.samples) == 6


def test_a_server_that_is_gone_ends_the_engine() -> None:
    server = ScriptedServer(lambda body, number: httpx.ConnectError("refused"))
    with pytest.raises(ServerGone, match="cannot be reached: refused; no response"):
        driven(server, one(wanted(keys=tuple(range(20)))), patience=0.2)
    # After the first that failed, one goes to see whether it is there again.
    assert len(server.bodies) >= 8


def test_an_engine_that_outlives_a_server_fails_what_waits_for_it() -> None:
    there = False
    server = ScriptedServer(lambda body, number: answer("back") if there else httpx.ConnectError("refused"))

    async def use(engine: RemoteEngine) -> None:
        nonlocal there
        tickets = [engine.submit("llm", wanted(keys=(number, number + 100))) for number in range(8)]
        ended = await asyncio.gather(*map(_awaited, tickets), return_exceptions=True)
        assert {type(end) for end in ended} == {ServerGone} and engine.busy("llm") == 0
        # Those that come later learn of it at once, and of its return.
        asked = len(server.bodies)
        with pytest.raises(ServerGone):
            await engine.submit("llm", wanted())
        assert len(server.bodies) == asked + 1
        there = True
        await engine.submit("llm", wanted())

    driven(server, use, patience=0.2, outlives=True)


async def _awaited(ticket: Ticket) -> Completion:
    return await ticket


def test_no_error_shows_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QPDSL_API_KEYS", f"{ADDRESS.url}=sk-secret")
    for error in ({"message": "no sk-secret", "code": 400}, {"message": "later, sk-secret"}):
        server = ScriptedServer(lambda _, number, error=error: {"error": error})
        with pytest.raises(EngineError) as raised:
            driven(server, one(wanted()), patience=0.1)
        assert "…" in str(raised.value) and "sk-secret" not in str(raised.value)


def test_a_server_that_comes_back_is_gone_on_with() -> None:
    begun = time.monotonic()

    def script(body: Body, number: int) -> Exception | Body:
        return httpx.ConnectError("refused") if time.monotonic() < begun + 0.2 else by_seed(body, number)

    completion = driven(ScriptedServer(script), one(wanted(keys=tuple(range(20)))))
    assert len(completion.samples) == 20


def test_an_answer_of_another_form_is_told_in_words() -> None:
    with pytest.raises(EngineError, match=r'does not have the fields of OpenAI\'s API; it begins with {"choices": 3}'):
        driven(ScriptedServer(lambda _, number: {"choices": 3}), one(wanted()))
    with pytest.raises(EngineError, match="cannot be read: its text is not a string"):
        driven(ScriptedServer(lambda _, number: {"choices": [{"text": 3}]}), one(wanted()))


@pytest.mark.parametrize(
    "strange",
    [
        [],
        {"choices": 3},
        {"choices": [[]]},
        {"choices": [{"text": ["a"], "finish_reason": "stop"}]},
        {"choices": [{"text": "a", "finish_reason": {"why": 1}}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "logprobs": {"token_logprobs": [float("-inf")]}}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "logprobs": {"content": [{"token": 3}]}}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "token_ids": [1 << 40]}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "token_ids": [-1]}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "token_ids": "x"}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "token_ids": [float("inf")]}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "logprobs": {"token_logprobs": [10**400]}}]},
    ],
)
def test_strange_answers_end_a_row_and_not_the_engine(strange: Any) -> None:
    able = replace(CAPABILITIES, endpoint="ids", token_ids=True)
    place = zoo.path("zoo/counting")
    with pytest.raises(EngineError):
        content = json.dumps(strange).encode()
        server = ScriptedServer(lambda _, number: httpx.Response(200, content=content))
        driven(server, one(replace(wanted(), prompt=(1, 2))), capabilities=able, address=IDS, place=place)


class EndedByOthers(httpx.AsyncByteStream):
    """A stream of a server that ends it when another request comes."""

    latest = -1

    def __init__(self, number: int) -> None:
        self._number = EndedByOthers.latest = number

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for text in "7777":
            await asyncio.sleep(0.002)
            if EndedByOthers.latest != self._number:
                break
            yield f"data: {json.dumps(piece(text))}\n\n".encode()
        else:
            yield f"data: {json.dumps(piece('', 'stop'))}\n\n".encode()
        yield b"data: [DONE]\n\n"


def test_a_server_that_ends_streams_as_others_come_gets_one_at_a_time() -> None:
    told: list[str] = []
    detokenizer = model_of().detokenizer

    def script(body: Body, number: int) -> httpx.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, stream=EndedByOthers(number))

    async def use(engine: RemoteEngine) -> list[str]:
        watched = {"watch": lambda index: StopWatch(detokenizer, None, lambda text: None)}
        tickets = [engine.submit("llm", wanted(f"{number}?", **watched)) for number in range(20)]
        return [text for ticket in tickets for text in text_of(await ticket)]

    server = ScriptedServer(script)
    assert driven(server, use, tell=told.append) == ["7777"] * 20
    # Eight went together twice, of which the last was answered.
    assert len(server.bodies) <= 20 + 2 * 8
    (note,) = told
    assert "one at a time" in note and "http://127.0.0.1:8000/v1" in note


@pytest.mark.parametrize("broken", [{3, 11, 19, 27}, set(range(8))], ids=["now and then", "all at once"])
def test_a_server_that_breaks_some_streams_off_keeps_its_requests(broken: set[int]) -> None:
    told: list[str] = []
    detokenizer = model_of().detokenizer

    def script(body: Body, number: int) -> httpx.Response:
        events = [piece("7")] if number in broken else [piece("7"), piece("7"), piece("", "stop")]
        return Pieces(*events, pace=0.002).response

    async def use(engine: RemoteEngine) -> list[str]:
        watched = {"watch": lambda index: StopWatch(detokenizer, None, lambda text: None)}
        tickets = [engine.submit("llm", wanted(f"{number}?", **watched)) for number in range(40)]
        texts = [text for ticket in tickets for text in text_of(await ticket)]
        assert engine.counts("llm").limit > 1
        return texts

    server = ScriptedServer(script)
    assert driven(server, use, tell=told.append) == ["77"] * 40
    assert len(server.bodies) == 40 + len(broken) and not told


def test_a_request_that_is_always_broken_off_waits_longer_and_longer_though_others_come_behind_it() -> None:
    detokenizer = model_of().detokenizer

    def script(body: Body, number: int) -> httpx.Response:
        events = [piece("7")] if body["prompt"] == "bad" else [piece("7"), piece("", "stop")]
        return Pieces(*events, pace=0.002).response

    async def use(engine: RemoteEngine) -> None:
        watched = {"watch": lambda index: StopWatch(detokenizer, None, lambda text: None)}
        bad = engine.submit("llm", wanted("bad", **watched))
        for number in range(40):
            others = [engine.submit("llm", wanted(f"{number} {own}", **watched)) for own in range(3)]
            for ticket in others:
                await ticket
        bad.cancel()

    server = ScriptedServer(script)
    driven(server, use)
    assert 1 < sum(body["prompt"] == "bad" for body in server.bodies) < 12
