"""A connection that waits for a server which is busy or starting, as a run does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx

from qpdsl.executor.remote.server.connection import STALL, AnswerClock, Connection
from qpdsl.executor.remote.server.failures import PATIENCE, Retries, Unreachable
from qpdsl.executor.requests.errors import ServerGone


class PatientConnection(Connection):
    """Asks again where the server answers 429 or 503, until that was all it said for `patience` seconds.

    `asked` is called with how many requests there were by now, each time there is one more.
    """

    def __init__(
        self,
        url: str,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        patience: float = PATIENCE,
        asked: Callable[[int], object] = lambda requests: None,
    ) -> None:
        super().__init__(url, transport, min(STALL, patience))
        self._retries = Retries(patience)
        self._asked, self._requests = asked, 0

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None, stall: float | None = None
    ) -> AsyncIterator[tuple[httpx.Response, AnswerClock]]:
        attempts = 0
        self._requests += 1
        self._asked(self._requests)
        async with AsyncExitStack() as opened:
            while True:
                try:
                    answer = await opened.enter_async_context(super()._answer(method, path, body, stall))
                    break
                except Unreachable as failed:
                    if not failed.busy:
                        raise
                    attempts += 1
                    await asyncio.sleep(self._wait(failed, attempts))
            self._retries.answered()
            yield answer

    def _wait(self, failed: Unreachable, attempts: int) -> float:
        try:
            return self._retries.wait(failed, attempts)
        except ServerGone as gone:
            raise Unreachable(str(gone), stalled=True) from failed
