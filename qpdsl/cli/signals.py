"""Ctrl-C and SIGTERM: the first signal lets a run end in good order, the second one ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from qpdsl.cli.exits import Exit

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
_SHOW_CURSOR = b"\033[?25h"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_until_interrupted(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine; a signal cancels it, which comes out as KeyboardInterrupt."""
    import asyncio

    interrupted = threading.Event()

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        with _first_cancels(asyncio.get_running_loop(), task, interrupted):
            return await coroutine

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        if interrupted.is_set():
            raise KeyboardInterrupt from None
        raise


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Inside the block both signals raise KeyboardInterrupt, also in a job that a shell has put in the background."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _first_cancels(
    loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], interrupted: threading.Event
) -> Iterator[None]:
    # A plain handler runs between two calls into torch; one of the loop's would wait for the whole step.
    def handle(number: int, frame: FrameType | None) -> None:
        if interrupted.is_set():
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), _SHOW_CURSOR)
            os._exit(Exit.INTERRUPTED)
        interrupted.set()
        loop.call_soon_threadsafe(task.cancel)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
