"""When the next row may start: one always, another while the engine has fewer sequences than a floor."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from qpdsl.session import Session

T = TypeVar("T")


class Admission:
    """Lets the rows of a data set start one after another, in the order in which they ask.

    One row always runs, whatever else the session does. Another starts while fewer than `in_flight` run (None: any
    number) and the engine has fewer sequences than `floor` to work at (0: any number). Everything happens in one event
    loop.
    """

    def __init__(self, floor: int, in_flight: int | None = None) -> None:
        self._floor = floor
        self._in_flight = in_flight
        self._turn = asyncio.Lock()
        self._running = 0
        self._ended = asyncio.Event()
        self._release: asyncio.Task[None] | None = None

    async def run(self, session: Session, row: Coroutine[Any, Any, T]) -> T:
        """Runs a row once it may start, while the session's engine steps."""
        try:
            await self.enter(session)
        except BaseException:
            row.close()
            raise
        try:
            return await row
        finally:
            self.leave()

    async def enter(self, session: Session) -> None:
        """Waits until a row may start. It counts as running until `leave` is called for it."""
        await self._turn.acquire()
        try:
            await self.wait(session)
        finally:
            # The next row looks once this one has asked the engine for what it needs first.
            self._release = asyncio.create_task(self._pass_on(session))

    def leave(self) -> None:
        """Says that a row has ended."""
        self._running -= 1
        self._ended.set()

    async def wait(self, session: Session) -> None:
        """As `enter`, for one who starts all rows and awaits `session.settled()` after each: no turn is passed on.

        Every turn of the event loop that a row starts later is a step of the engine without it.
        """
        async with session.below(self._floor) as below:
            while self._running and (self._running == self._in_flight or not below.is_set()):
                self._ended.clear()
                changes = [self._ended] if self._running == self._in_flight else [self._ended, below]
                waits = [asyncio.ensure_future(change.wait()) for change in changes]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
        self._running += 1

    async def _pass_on(self, session: Session) -> None:
        await session.settled()
        self._turn.release()
