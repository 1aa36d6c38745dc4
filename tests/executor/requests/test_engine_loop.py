"""Whoever answers takes part in the next step, however many turns the loop needs to come to it."""

from __future__ import annotations

import asyncio

import pytest

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.requests import engine_loop
from qpdsl.executor.requests.engine_loop import EngineLoop
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from tests.support.executor.models import paged


@pytest.mark.parametrize("turns", [1, 5, 30])
def test_requests_that_take_turns_to_come_share_steps(turns: int) -> None:
    """Two rows that ask again and again, one of them slowly, run side by side: no step has one of them alone."""
    steps: list[int] = []
    engine = PagedEngine(on_step=lambda report: steps.append(report.sequences))
    engine.add("m", paged("llama"))

    async def asks(first: int, turns: int) -> None:
        for number in range(4):
            request = GenerateRequest((first, number + 1), (number,), SamplingParams(1.0), 3, frozenset())
            assert len((await engine.submit("m", request)).samples[0].tokens) == 3
            for _ in range(turns):
                await asyncio.sleep(0)

    async def main() -> None:
        driver = asyncio.create_task(engine.drive())
        await asyncio.gather(asks(1, 0), asks(2, turns))
        driver.cancel()

    engine_loop.run(main())
    assert steps == [2] * 12


def test_one_that_never_rests_does_not_stop_the_engine() -> None:
    async def main() -> int:
        counted = 0

        async def spins() -> None:
            nonlocal counted
            while True:
                counted += 1
                await asyncio.sleep(0)

        spinning = asyncio.create_task(spins())
        loop = asyncio.get_running_loop()
        assert isinstance(loop, EngineLoop)
        await asyncio.wait_for(loop.idle(), 10)
        spinning.cancel()
        return counted

    assert 1 < engine_loop.run(main()) < 100


def test_it_sleeps_where_nobody_waits() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, EngineLoop)
        await loop.idle()
        start = loop.time()
        await asyncio.sleep(0.02)
        return loop.time() - start

    assert engine_loop.run(main()) >= 0.02


def test_whoever_is_cancelled_while_what_drives_it_ends_is_cancelled() -> None:
    async def drives() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)

    async def main() -> None:
        async with engine_loop.driven(drives(), "it"):
            await asyncio.sleep(0)

    async def cancels() -> None:
        task = asyncio.create_task(main())
        for _ in range(4):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancels())
