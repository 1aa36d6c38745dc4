"""The event loop of an engine: between two steps everybody else has all the turns that there is something to do for.

A coroutine that has its answer takes several turns to ask again, and one that comes from a socket takes more. A step
that began before would run without it, and last as long as with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
# An engine waits for no more turns, whatever goes on.
_MAX_TURNS = 64


class _Selector(selectors.DefaultSelector):
    """Says when a loop would sleep: all that was ready has had its turn, and no file has news."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[asyncio.Future[None]] = []
        self.turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self.waiting:
            return super().select(timeout)
        self.turns += 1
        found = super().select(0)
        if self.turns >= _MAX_TURNS or not (found or timeout == 0):
            waiting, self.waiting, self.turns = self.waiting, [], 0
            for one in waiting:
                if not one.done():
                    one.set_result(None)
        return found


class EngineLoop(asyncio.SelectorEventLoop):
    """A loop that says when it is idle."""

    def __init__(self) -> None:
        self._watched = _Selector()
        super().__init__(self._watched)

    async def idle(self) -> None:
        """Returns once nothing is ready but those that wait here, after 64 turns at the latest."""
        idle = self.create_future()
        self._watched.waiting.append(idle)
        await idle


async def take_turns() -> None:
    """Lets all go on that can: in a loop of another kind, those that were just told, up to what they ask next."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, EngineLoop):
        await loop.idle()
    else:
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def driven(driving: Coroutine[Any, Any, None], what: str) -> AsyncIterator[asyncio.Task[None]]:
    """Runs `driving` beside the block, and cancels it at the block's end; where it ends before, that ends the block.

    What it raises is raised there, RuntimeError where it just ends: `what` stopped.
    """
    task = asyncio.current_task()
    driver = asyncio.create_task(driving)
    failures: list[BaseException] = []
    left = False

    def stopped(driver: asyncio.Task[None]) -> None:
        why = None if driver.cancelled() else driver.exception() or RuntimeError(f"{what} stopped")
        if why is not None and task is not None and not left:
            failures.append(why)
            task.cancel()

    driver.add_done_callback(stopped)
    try:
        yield driver
    except asyncio.CancelledError:
        if failures:
            if task is not None:
                task.uncancel()
            raise failures[0] from None
        raise
    finally:
        left = True
        driver.cancel()
        await asyncio.wait((driver,))


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in an EngineLoop."""
    with asyncio.Runner(loop_factory=EngineLoop) as runner:
        return runner.run(coroutine)
