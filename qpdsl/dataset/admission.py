"""When the next row of a `map` may start: as `qpdsl.batch.run_rows` has it for the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from qpdsl.session import Session

T = TypeVar("T")


class Gate:
    """Lets rows start one after another, each while fewer sequences than `floor` are at work.

    One row is always let in, whatever else the session does. Everything happens in the thread that runs programs.
    """

    def __init__(self, floor: int) -> None:
        self._floor = floor
        self._turn = asyncio.Lock()
        self._empty = asyncio.Event()
        self._empty.set()
        self._inside = 0
        self._released: asyncio.Task[None] | None = None

    async def run(self, session: Session, work: Coroutine[Any, Any, T]) -> T:
        """Runs a row when it may start, while the session's engine steps."""
        try:
            await self._turn.acquire()
            try:
                await self._wait(session)
                self._inside += 1
                self._empty.clear()
            finally:
                # The next one looks when this one has shown what it asks of the engine.
                self._released = asyncio.create_task(self._release(session))
        except BaseException:
            work.close()
            raise
        try:
            return await work
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def _wait(self, session: Session) -> None:
        if self._empty.is_set():
            return
        async with session.below(self._floor) as below:
            waiting = [asyncio.ensure_future(event.wait()) for event in (below, self._empty)]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waiting:
                    each.cancel()

    async def _release(self, session: Session) -> None:
        await session.settled()
        self._turn.release()
