"""Ctrl-C and SIGTERM: the first one ends a run in good order, the second one at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

from qpdsl.cli.exits import Exit

T = TypeVar("T")
_SHOW_CURSOR = b"\033[?25h"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_until_interrupted(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine; a signal cancels it, which comes out as KeyboardInterrupt."""
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
def terminates_like_interrupt() -> Iterator[None]:
    """Inside the block SIGTERM is a KeyboardInterrupt, as SIGINT is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
