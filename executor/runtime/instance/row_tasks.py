"""The coroutines of one run of a program: side by side, and how long the run may take."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class RowClock:
    """Ends a block after so many seconds, with TimeoutError; never where `seconds` is None.

    Time in which the row waits for the Python function of another row does not count. All is done in one event loop.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._timeout: asyncio.Timeout | None = None
        self._paused = 0
        self._left = 0.0

    async def __aenter__(self) -> RowClock:
        if self.seconds is not None:
            self._timeout = await asyncio.timeout(self.seconds).__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        timeout, self._timeout = self._timeout, None
        if timeout is not None:
            await timeout.__aexit__(*failure)  # type: ignore[arg-type]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock while the block runs. Several parts of a row may pause it at once."""
        self._paused += 1
        if self._paused == 1:
            self._stop()
        try:
            yield
        finally:
            self._paused -= 1
            if not self._paused:
                self._go_on()

    def _stop(self) -> None:
        timeout = self._timeout
        if timeout is None or timeout.expired():
            return
        end = timeout.when()
        assert end is not None
        self._left = end - asyncio.get_running_loop().time()
        timeout.reschedule(None)

    def _go_on(self) -> None:
        timeout = self._timeout
        if timeout is not None and not timeout.expired():
            timeout.reschedule(asyncio.get_running_loop().time() + self._left)


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order. Where one coroutine raises, the others are cancelled and awaited first."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
