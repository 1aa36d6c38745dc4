"""Answers that are read as they are written: where they end, break off, and are given up."""

from __future__ import annotations

import asyncio
import gc
import warnings
from dataclasses import replace
from typing import Any

import httpx
import pytest

from qpdsl.executor.remote.remote_engine import RemoteEngine
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import (
    Completion,
)
from qpdsl.executor.text.stop import StopWatch
from tests.support.remote.scripted_requests import by_seed, one, piece, stopping, text_of
from tests.support.remote.scripted_server import (
    ADDRESS,
    CAPABILITIES,
    Body,
    Pieces,
    ScriptedServer,
    answer,
    driven,
    model_of,
    until,
    wanted,
)

pytestmark = pytest.mark.usefixtures("soon")


def test_a_stop_ends_the_sample_and_closes_the_stream() -> None:
    body = Pieces(piece(" one"), piece(" t"), piece("wo; three"), *[piece(" more")] * 1000)
    completion = driven(ScriptedServer(lambda _, number: body.response), one(stopping(";")))
    (sample,) = completion.samples
    assert text_of(completion) == [" one two;"] and sample.finish == "stop"
    assert body.closed_early and body.sent == 3


def test_a_stop_is_sent_where_the_server_names_it() -> None:
    named = answer(" one two;", stop_reason=";")
    server = ScriptedServer(lambda _, number: named)
    completion = driven(server, one(stopping(";")), capabilities=replace(CAPABILITIES, names_stop=True))
    assert server.bodies[0]["stop"] == [";"] and server.bodies[0]["include_stop_str_in_output"] is True
    assert text_of(completion) == [" one two;"] and completion.samples[0].finish == "stop"
    server = ScriptedServer(lambda _, number: answer(" one two", stop_reason=";"))
    with pytest.raises(EngineError, match="stopped at ';', which is not in its answer"):
        driven(server, one(stopping(";")), capabilities=replace(CAPABILITIES, names_stop=True))


def test_a_stream_that_breaks_off_is_read_again_and_shown_once() -> None:
    shown: list[str] = []
    detokenizer = model_of().detokenizer
    request = wanted(watch=lambda index: StopWatch(detokenizer, None, shown.append))
    half = [piece(" one"), piece(" two")]

    def script(body: Body, number: int) -> httpx.Response:
        done = number == 1
        return Pieces(*half, *([piece(" three", "stop")] if done else []), done=done).response

    completion = driven(ScriptedServer(script), one(request))
    assert text_of(completion) == [" one two three"] and "".join(shown) == " one two three"
    assert completion.calls.retries == 1
    assert completion.samples[0].watch.pushed == len(" one two three")  # type: ignore[union-attr]


def test_another_answer_after_a_break_is_looked_at_from_its_beginning() -> None:
    def script(body: Body, number: int) -> httpx.Response:
        words = (" one", " two") if number == 0 else (" uno", "; due")
        return Pieces(*map(piece, words), done=False).response

    assert text_of(driven(ScriptedServer(script), one(stopping(";")))) == [" uno;"]


def test_cancelling_closes_what_is_under_way_and_forgets_the_rest() -> None:
    async def never(body: Body) -> Body:
        await asyncio.sleep(60)
        return answer("")

    server = ScriptedServer(lambda body, number: never(body))

    async def use(engine: RemoteEngine) -> None:
        ticket = engine.submit("llm", wanted(keys=tuple(range(20))))
        other = engine.submit("llm", wanted("other"))
        await until(lambda: server.in_flight == 8)
        assert engine.busy("llm") == 21
        assert engine.counts("llm").in_flight == 8
        ticket.cancel()
        await until(lambda: (server.given_up, server.in_flight) == (8, 1))
        assert engine.busy("llm") == 1
        other.cancel()
        await until(lambda: server.in_flight == 0)
        assert (engine.busy("llm"), len(server.bodies)) == (0, 9)

    driven(server, use)


def test_what_was_under_way_is_begun_anew_by_the_next_drive() -> None:
    async def slow(body: Body) -> Body:
        await asyncio.sleep(0.05)
        return by_seed(body, 0)

    server = ScriptedServer(lambda body, number: slow(body))
    engine = RemoteEngine(transport=server.transport)
    engine.add("llm", ADDRESS, CAPABILITIES, model_of())

    async def first() -> Any:
        driver = asyncio.create_task(engine.drive())
        ticket = engine.submit("llm", wanted(keys=tuple(range(12))))
        await asyncio.sleep(0.02)
        driver.cancel()
        await asyncio.gather(driver, return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1 and not ticket.done
        return ticket

    async def second(ticket: Any) -> Completion:
        driver = asyncio.create_task(engine.drive())
        completion: Completion = await ticket
        driver.cancel()
        await asyncio.gather(driver, return_exceptions=True)
        return completion

    ticket = asyncio.run(first())
    assert len(asyncio.run(second(ticket)).samples) == 12
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        gc.collect()


def test_the_first_of_a_fan_out_leads() -> None:
    async def main_use(engine: RemoteEngine) -> None:
        ticket = engine.submit("llm", wanted(keys=(1, 2, 3), lead=True))
        await asyncio.sleep(0.03)
        assert len(server.bodies) == 1
        gates[0].set()
        await until(lambda: len(server.bodies) == 3)
        assert not ticket.done
        done.set()
        assert len((await ticket).samples) == 3

    gates, done = [asyncio.Event()], asyncio.Event()

    async def script(body: Body) -> httpx.Response:
        if body["seed"] == server.bodies[0]["seed"]:
            await gates[0].wait()
        return Pieces(piece(" a"), piece(" b", "stop"), gate=done).response

    server = ScriptedServer(lambda body, number: script(body))
    driven(server, main_use)
