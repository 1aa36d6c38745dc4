"""A stream of server-sent events: sent as it comes, kept alive while nothing does, and given up where nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import Request

from qpdsl.serve.http.exchange import KEEP_ALIVE

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStreamResponse:
    """Sends what `chunks` gives. All that has come by the time that one is sent goes with it.

    After `quiet` seconds without a chunk a comment is sent. Where the client goes away, `chunks` is closed.
    """

    def __init__(self, chunks: AsyncIterator[bytes], quiet: float, headers: list[tuple[bytes, bytes]]) -> None:
        self._chunks = chunks
        self._quiet = quiet
        self._headers = headers
        self._ready: list[bytes] = []
        self._arrived = asyncio.Event()
        # When something was last sent, on the loop's clock.
        self._sent = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        making = asyncio.create_task(self._make())
        making.add_done_callback(lambda _: self._arrived.set())
        sending = asyncio.create_task(self._send(making, send))
        gone = asyncio.create_task(until_disconnect(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, sending, making):
                task.cancel()
            ended = await asyncio.gather(gone, sending, making, return_exceptions=True)
        for end in ended:
            if isinstance(end, Exception) and not isinstance(end, OSError):
                raise end

    async def _make(self) -> None:
        try:
            async for chunk in self._chunks:
                self._ready.append(chunk)
                self._arrived.set()
        finally:
            if (close := getattr(self._chunks, "aclose", None)) is not None:
                await close()

    async def _send(self, making: asyncio.Task[None], send: Send) -> None:
        loop = asyncio.get_running_loop()
        await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *self._headers]})
        self._sent = loop.time()
        self._look()
        try:
            while not making.done() or self._ready:
                await self._arrived.wait()
                self._arrived.clear()
                body = b"".join(self._ready)
                self._ready.clear()
                if body or not making.done():
                    self._sent = loop.time()
                    await send({"type": "http.response.body", "body": body or KEEP_ALIVE, "more_body": True})
        finally:
            if self._timer is not None:
                self._timer.cancel()
        await making
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _look(self) -> None:
        """Has a comment sent, if it is time. One timer a stream: one for each chunk would cost more than the chunk."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._sent + self._quiet:
            self._sent = loop.time()
            self._arrived.set()
        self._timer = loop.call_at(self._sent + self._quiet, self._look)


async def until_disconnect(receive: Receive) -> None:
    """Returns when the client has gone away; the body of its request must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def or_disconnect(request: Request, work: Awaitable[Any]) -> Any:
    """What `work` gives; None where the client goes away before, and then the work is cancelled."""
    tasks = [asyncio.ensure_future(work)]
    try:
        # Most work is done at once, and nobody need be watched meanwhile.
        await asyncio.sleep(0)
        if not tasks[0].done():
            tasks.append(asyncio.create_task(until_disconnect(request.receive)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
