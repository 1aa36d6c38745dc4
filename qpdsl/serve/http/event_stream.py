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
        await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *self._headers]})
        while True:
            quiet = False
            try:
                async with asyncio.timeout(self._quiet):
                    await self._arrived.wait()
            except TimeoutError:
                quiet = True
            self._arrived.clear()
            body = b"".join(self._ready)
            self._ready.clear()
            if body or quiet:
                await send({"type": "http.response.body", "body": body or KEEP_ALIVE, "more_body": True})
            if making.done() and not self._ready:
                break
        await making
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_disconnect(receive: Receive) -> None:
    """Returns when the client has gone away; the body of its request must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def or_disconnect(request: Request, work: Awaitable[Any]) -> Any:
    """What `work` gives; None where the client goes away before, and then the work is cancelled."""
    working = asyncio.ensure_future(work)
    gone = asyncio.create_task(until_disconnect(request.receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)
