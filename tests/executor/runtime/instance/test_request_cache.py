"""When requests to a large model go: enough of them, long enough, or nobody left to join."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import LogProbRequest, Request
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.runtime.instance.request_cache import Flush, RequestCache

LATE = Flush(100, 60.0)


class Recorder:
    """An engine that answers a request as soon as it comes, and refuses those of more than nine tokens."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.cancelled = 0

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(frozenset({"logprobs"}))

    def submit(self, model: str, request: Request) -> Ticket:
        if len(request.tokens) > 9:
            raise EngineError("too long")
        self.sent.append(len(request.tokens))
        ticket = Ticket(request, self._cancel)
        ticket.finish_read([(0.0,)], 0)
        return ticket

    def busy(self, model: str) -> int:
        return 0

    async def drive(self) -> None:
        await asyncio.Event().wait()

    def _cancel(self, ticket: Ticket) -> None:
        self.cancelled += 1


def asked(length: int) -> LogProbRequest:
    return LogProbRequest(tuple(range(1, length + 1)), (1,))


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 20))


def test_enough_of_them_go_at_once() -> None:
    async def main() -> list[int]:
        cache = RequestCache(Recorder())
        with cache.working("m"):
            flush = Flush(3, 60.0)
            return [size for _, size in await asyncio.gather(*(cache.sent("m", asked(2), flush) for _ in range(6)))]

    assert run(main()) == [3] * 6


def test_the_first_waits_no_longer_than_it_may() -> None:
    async def main() -> tuple[int, float]:
        cache, start = RequestCache(Recorder()), time.monotonic()
        with cache.working("m"):
            _, size = await cache.sent("m", asked(2), Flush(100, 0.05))
        return size, time.monotonic() - start

    size, seconds = run(main())
    assert size == 1 and seconds >= 0.04


def test_they_go_when_nobody_is_left_who_could_join() -> None:
    async def row(cache: RequestCache, turns: int) -> int:
        with cache.working("m"):
            for _ in range(turns):
                await asyncio.sleep(0)
        return (await cache.sent("m", asked(2), LATE))[1]

    async def finished(cache: RequestCache) -> None:
        with cache.working("m"):
            for _ in range(9):
                await asyncio.sleep(0)

    async def main() -> list[Any]:
        cache = RequestCache(Recorder())
        return await asyncio.gather(row(cache, 1), row(cache, 5), finished(cache))

    assert run(main()) == [2, 2, None]


def test_models_do_not_wait_for_each_other() -> None:
    async def main() -> tuple[int, int]:
        cache = RequestCache(Recorder())
        with cache.working("other"):
            return (await cache.sent("m", asked(2), LATE))[1], len(cache._queue("other").waiting)

    assert run(main()) == (1, 0)


def test_a_refused_request_fails_alone_and_one_given_up_is_not_sent() -> None:
    async def main() -> tuple[list[int], Any]:
        engine = Recorder()
        cache = RequestCache(engine)
        with cache.working("m"):
            gone = asyncio.ensure_future(cache.sent("m", asked(5), LATE))
            await asyncio.sleep(0)
            gone.cancel()
            tasks = [asyncio.ensure_future(cache.sent("m", asked(length), LATE)) for length in (2, 30, 3)]
            await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return engine.sent, results

    sent, (first, refused, last) = run(main())
    assert sent == [2, 3] and first[1] == last[1] == 3
    with pytest.raises(EngineError, match="too long"):
        raise refused


def test_it_works_in_one_loop_after_another() -> None:
    engine = Recorder()
    cache = RequestCache(engine)

    async def given_up() -> None:
        with cache.working("m"):
            await asyncio.wait_for(cache.sent("m", asked(4), LATE), 0.01)

    with pytest.raises(TimeoutError):
        run(given_up())

    async def main() -> int:
        return (await cache.sent("m", asked(2), LATE))[1]

    assert run(main()) == 1 and engine.sent == [2]
