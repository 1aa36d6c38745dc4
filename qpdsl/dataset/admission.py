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

    def __init__(self, floor: int = 0, in_flight: int | None = None) -> None:
        self._floor = floor
        self._in_flight = in_flight
        self._turn = asyncio.Lock()
        self._running = 0
        self._ended: asyncio.Future[None] | None = None
        self._release: asyncio.Task[None] | None = None

    def limit(self, floor: int, in_flight: int | None) -> None:
        """Sets both limits anew, for the rows that start from now on; not while somebody waits."""
        self._floor, self._in_flight = floor, in_flight

    async def run(self, session: Session, row: Coroutine[Any, Any, T]) -> T:
        """Runs a row once it may start, while the session's engine steps."""
        try:
            await self._turn.acquire()
            try:
                await self.wait(session)
            finally:
                # The next row looks once this one has asked the engine for what it needs first.
                self._release = asyncio.create_task(self._pass_on(session))
        except BaseException:
            row.close()
            raise
        try:
            return await row
        finally:
            self.leave()

    def leave(self) -> None:
        """Says that a row has ended."""
        self._running -= 1
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def wait(self, session: Session) -> None:
        """Waits until a row may start. It counts as running until `leave` is called for it.

        For one caller at a time, who awaits `session.settled()` once the row has started. The engine makes a step in
        every turn of the event loop, so a row is to start without a turn in between.
        """
        async with session.below(self._floor) as below:
            while self._running and (self._is_full() or not below.is_set()):
                ended = self._ended = asyncio.get_running_loop().create_future()
                changes = [ended]
                if not self._is_full():
                    changes.append(asyncio.ensure_future(below.wait()))
                try:
                    await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for change in changes:
                        change.cancel()
        self._running += 1

    def _is_full(self) -> bool:
        return self._in_flight is not None and self._running >= self._in_flight

    async def _pass_on(self, session: Session) -> None:
        await session.settled()
        self._turn.release()
