"""Reads requests in threads: large JSON, long texts and schemas never hold up the loop of the engine.

Tokenizers and llguidance let Python's global lock go while they work, and the rest is bounded, so the loop goes on. Few
threads work at once; small requests have one of their own, so that they do not wait for large ones. Whose turn it is to
be read is settled in a loop of its own: that of the engine has turns only between steps, and one request a step would
be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from qpdsl.serve.completion_request import Refusal
from qpdsl.serve.http.fair_queue import FairQueue, QueueFull

T = TypeVar("T")
# A body of more bytes is large.
_SMALL = 16 << 10
# A request that takes longer to read is given up. It cannot be ended: its thread goes on, beside so many like it.
_SECONDS = 10.0
_MAX_OVERDUE = 4


class RequestReader:
    """Runs what reads a request in a thread, one small and one large request at a time; up to `max_waiting` wait."""

    def __init__(self, max_waiting: int, seconds: float = _SECONDS) -> None:
        self._loop = _turns()
        self._seconds = seconds
        self._small, self._large = FairQueue(1, max_waiting), FairQueue(1, max_waiting)
        self._overdue = 0

    async def read(self, key: str, size: int, work: Callable[[], T]) -> T:
        """What `work` returns or raises, for a body of `size` bytes from a key. Raises Refusal where it has no time.

        Smaller requests of a key go first.
        """
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._read(key, size, work), self._loop))

    async def _read(self, key: str, size: int, work: Callable[[], T]) -> T:
        queue = self._small if size <= _SMALL else self._large
        try:
            await queue.enter(key, -size)
        except QueueFull:
            message = f"{queue.waiting} requests wait to be read; the server takes no more now"
            raise Refusal(message, status=429, code="queue_full", retry_after=1) from None
        done: asyncio.Future[T] = self._loop.create_future()
        place = _Place(self, queue, key)
        timer = self._loop.call_later(self._seconds, place.overdue)

        def ended(_: asyncio.Future[T]) -> None:
            timer.cancel()
            place.leave()

        done.add_done_callback(ended)
        threading.Thread(target=_run, args=(work, done, self._loop), name="qpdsl reads", daemon=True).start()
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.shield(done)
        except TimeoutError:
            message = f"reading the request took more than {self._seconds:g} s: send shorter texts, or a smaller schema"
            raise Refusal(message, code="too_slow_to_read") from None

    def _let_go(self, more: int) -> bool:
        """Counts threads that go on without a place; False where there are too many for one more."""
        if self._overdue + more > _MAX_OVERDUE:
            return False
        self._overdue += more
        return True


@cache
def _turns() -> asyncio.AbstractEventLoop:
    """The loop in which requests are given their turns, in a thread that ends with the process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="qpdsl turns", daemon=True).start()
    return loop


class _Place:
    """A place in a queue, which is given back once: when its thread is done, or is overdue and others can go on."""

    def __init__(self, reader: RequestReader, queue: FairQueue, key: str) -> None:
        self._reader = reader
        self._queue = queue
        self._key = key
        self._left = False

    def overdue(self) -> None:
        if self._reader._let_go(1):
            self._left = True
            self._queue.leave(self._key)

    def leave(self) -> None:
        if self._left:
            self._reader._let_go(-1)
        else:
            self._queue.leave(self._key)


def _run(work: Callable[[], T], done: asyncio.Future[T], loop: asyncio.AbstractEventLoop) -> None:
    result: T | None = None
    failure: BaseException | None = None
    try:
        result = work()
    except BaseException as error:
        failure = error

    def tell() -> None:
        if done.cancelled():
            return
        if failure is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(failure)
            # Nobody waits where the client has gone.
            done.exception()

    # The loop is closed where the server has ended meanwhile.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(tell)
