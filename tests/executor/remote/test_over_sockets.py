"""The engine and a server over real sockets: keep-alive, closed connections, a server that goes and comes back."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from qpdsl.executor.remote.remote_engine import RemoteEngine
from qpdsl.executor.remote.server import retries
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.requests.request import Completion
from qpdsl.executor.text.stop import Stops, StopWatch
from tests.support.remote.scripted_server import ABILITIES, model_of, wanted
from tests.support.remote.stub_server import stub


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_sample_that_ended_here_frees_the_server() -> None:
    with stub("vllm", pace=0.01, writes=lambda prompt, seed: " one; " + "more " * 500) as server:
        address = Address("vllm", server.url, server.model)
        engine = RemoteEngine()
        engine.add("llm", address, ABILITIES, model_of(ABILITIES, address))
        detokenizer = model_of().detokenizer
        request = wanted(
            keys=(1, 2), max_tokens=1000, watch=lambda index: StopWatch(detokenizer, Stops((";",))), stops=(";",)
        )

        async def main() -> None:
            driver = asyncio.create_task(engine.drive())
            completion = await engine.submit("llm", request)
            assert [sample.finish for sample in completion.samples] == ["stop"] * 2
            given_up = engine.submit("llm", wanted(keys=(3, 4, 5), max_tokens=1000))
            await asyncio.sleep(0.2)
            given_up.cancel()
            await asyncio.sleep(0.2)
            driver.cancel()
            await asyncio.gather(driver, return_exceptions=True)

        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        asyncio.run(main())
        until(lambda: server.counts.aborted == 5)
        until(lambda: server.counts.connections == 0)
        if before:
            until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_a_server_that_was_killed_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST", 0.02)
    with stub("vllm", pace=0.005) as server:
        address = Address("vllm", server.url, server.model)
        engine = RemoteEngine()
        engine.add("llm", address, ABILITIES, model_of(ABILITIES, address))

        async def main(*, killed: bool) -> Completion:
            driver = asyncio.create_task(engine.drive())
            ticket = engine.submit("llm", wanted(keys=tuple(range(12)), max_tokens=20))
            if killed:
                await asyncio.sleep(0.15)
                await asyncio.to_thread(server.stop)
                await asyncio.sleep(0.1)
                await asyncio.to_thread(server.start)
            completion: Completion = await ticket
            driver.cancel()
            await asyncio.gather(driver, return_exceptions=True)
            return completion

        broken, whole = asyncio.run(main(killed=True)), asyncio.run(main(killed=False))
        assert broken.calls is not None and broken.calls.retries > 0
        assert broken.samples == whole.samples
        # Requests one after the other share a connection.
        assert server.counts.opened < server.counts.requests


def test_the_limit_holds_over_all_models_of_a_server() -> None:
    with stub("vllm", pace=0.01) as server:
        address = Address("vllm", server.url, server.model)
        engine = RemoteEngine()
        for name in ("a", "b"):
            engine.add(name, address, ABILITIES, model_of(replace(ABILITIES), address))

        async def main() -> None:
            driver = asyncio.create_task(engine.drive())
            await asyncio.gather(
                *(engine.submit(name, wanted(keys=tuple(range(6)), max_tokens=5)) for name in ("a", "b"))
            )
            driver.cancel()
            await asyncio.gather(driver, return_exceptions=True)

        asyncio.run(main())
        assert server.counts.most <= 16
