"""What is read in threads: nobody waits for a large request, and one that hangs takes nobody's place for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import pytest

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")

from qpdsl.serve.completion_request import Refusal
from qpdsl.serve.http.request_reader import RequestReader

LARGE = 1 << 20


def test_small_requests_do_not_wait_for_large_ones() -> None:
    async def check() -> None:
        reader, goes_on = RequestReader(10), threading.Event()
        large = [asyncio.create_task(reader.read("a", LARGE, goes_on.wait)) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert await asyncio.wait_for(reader.read("a", 100, lambda: 7), 5) == 7
        goes_on.set()
        assert await asyncio.gather(*large) == [True] * 3

    asyncio.run(check())


def test_what_it_raises_comes_out() -> None:
    def fails() -> None:
        raise Refusal("no")

    with pytest.raises(Refusal, match="no"):
        asyncio.run(RequestReader(10).read("", 1, fails))


def test_keys_take_turns() -> None:
    async def check() -> None:
        reader, order, goes_on = RequestReader(100), list[str](), threading.Event()

        def read(key: str) -> None:
            goes_on.wait(10)
            order.append(key)

        flood = [asyncio.create_task(reader.read("alice", 1, partial(read, "alice"))) for _ in range(20)]
        bob = asyncio.create_task(reader.read("bob", 1, partial(read, "bob")))
        # All those wait by the time that one has been read which came after them.
        await reader.read("", LARGE, lambda: None)
        goes_on.set()
        await asyncio.gather(*flood, bob)
        assert order.index("bob") < 3

    asyncio.run(check())


def test_one_that_takes_too_long_is_refused_and_others_go_on() -> None:
    async def check() -> None:
        reader, end = RequestReader(10, seconds=0.05), threading.Event()
        for _ in range(3):
            with pytest.raises(Refusal) as slow:
                await reader.read("", LARGE, end.wait)
            assert slow.value.status == 400 and slow.value.code == "too_slow_to_read"
        assert await reader.read("", LARGE, lambda: 1) == 1
        end.set()

    asyncio.run(check())


def test_clients_that_go_away_make_no_more_threads() -> None:
    """A thread cannot be ended, so its place is taken as long as it runs."""

    async def check() -> None:
        reader, end, begun = RequestReader(100), threading.Event(), list[int]()

        def hangs(number: int) -> None:
            begun.append(number)
            end.wait(10)

        for number in range(50):
            task = asyncio.create_task(reader.read("", LARGE, partial(hangs, number)))
            # It has begun, or waits, once a small one has been read that came after it.
            await reader.read("", 1, lambda: None)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert begun == [0]
        end.set()
        assert await reader.read("", LARGE, lambda: 1) == 1

    asyncio.run(check())


def test_many_are_read_while_the_engine_has_the_loop() -> None:
    """A step takes the loop for long, and all requests that came before it are to be in the next one."""

    async def check() -> int:
        reader, read = RequestReader(100), list[int]()
        tasks = [asyncio.create_task(reader.read("", 1, partial(read.append, number))) for number in range(20)]
        await asyncio.sleep(0)
        end = time.monotonic() + 10
        while len(read) < 20 and time.monotonic() < end:
            time.sleep(0.01)
        found = len(read)
        await asyncio.gather(*tasks)
        return found

    assert asyncio.run(check()) == 20


def test_the_loop_goes_on_while_a_thread_holds_the_lock() -> None:
    def busy() -> int:
        end = time.monotonic() + 0.3
        return sum(1 for _ in iter(lambda: time.monotonic() < end, False))

    async def check() -> float:
        reading = asyncio.create_task(RequestReader(1).read("", 1, busy))
        longest, last = 0.0, time.monotonic()
        while not reading.done():
            await asyncio.sleep(0.001)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        return longest

    assert asyncio.run(check()) < 0.25
