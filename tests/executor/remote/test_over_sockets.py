"""The engine and a server over real sockets: keep-alive, closed connections, a server that goes and comes back."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest

from qpdsl.executor.remote.remote_engine import RemoteEngine
from qpdsl.executor.remote.server import failures
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.requests.request import Completion
from qpdsl.executor.text.stop import Stops, StopWatch
from tests.support.remote.scripted_server import CAPABILITIES, model_of, until, wanted
from tests.support.remote.stub_server import stub


async def open_files() -> int:
    """The files and sockets of this process; 0 where that cannot be told."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def test_a_sample_that_ended_here_frees_the_server() -> None:
    with stub("vllm", pace=0.01, writes=lambda prompt, seed: " one; " + "more " * 500) as server:
        address = Address("vllm", server.url, server.model)
        engine = RemoteEngine()
        engine.add("llm", address, CAPABILITIES, model_of(CAPABILITIES, address))
        detokenizer = model_of().detokenizer
        request = wanted(
            keys=(1, 2), max_tokens=1000, watch=lambda index: StopWatch(detokenizer, Stops((";",))), stops=(";",)
        )

        async def main() -> None:
            driver = asyncio.create_task(engine.drive())
            completion = await engine.submit("llm", request)
            assert [sample.finish for sample in completion.samples] == ["stop"] * 2
            given_up = engine.submit("llm", wanted(keys=(3, 4, 5), max_tokens=1000))
            await until(lambda: server.counts.serving == 3)
            given_up.cancel()
            await until(lambda: server.counts.aborted == 5)
            driver.cancel()
            await asyncio.gather(driver, return_exceptions=True)

        before = asyncio.run(open_files())
        asyncio.run(main())
        asyncio.run(until(lambda: server.counts.connections == 0))
        assert asyncio.run(open_files()) <= before


def test_a_server_that_was_killed_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_FIRST", 0.02)
    with stub("vllm", pace=0.005) as server:
        address = Address("vllm", server.url, server.model)
        engine = RemoteEngine()
        engine.add("llm", address, CAPABILITIES, model_of(CAPABILITIES, address))

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


def test_requests_one_after_the_other_share_a_connection() -> None:
    with stub("vllm") as server:
        engine = RemoteEngine()
        address = Address("vllm", server.url, server.model)
        engine.add("llm", address, CAPABILITIES, model_of(CAPABILITIES, address))

        async def main() -> None:
            driver = asyncio.create_task(engine.drive())
            for key in range(3):
                await engine.submit("llm", wanted(keys=(key,), max_tokens=2))
            driver.cancel()
            await asyncio.gather(driver, return_exceptions=True)

        asyncio.run(main())
        assert (server.counts.requests, server.counts.opened) == (3, 1)


def test_the_limit_holds_over_all_models_of_a_server() -> None:
    with stub("vllm", pace=0.01) as server:
        address = Address("vllm", server.url, server.model)
        engine = RemoteEngine()
        for name in ("a", "b"):
            engine.add(name, address, CAPABILITIES, model_of(replace(CAPABILITIES), address))

        async def main() -> None:
            driver = asyncio.create_task(engine.drive())
            await asyncio.gather(
                *(engine.submit(name, wanted(keys=tuple(range(6)), max_tokens=5)) for name in ("a", "b"))
            )
            driver.cancel()
            await asyncio.gather(driver, return_exceptions=True)

        asyncio.run(main())
        assert server.counts.most <= 16
