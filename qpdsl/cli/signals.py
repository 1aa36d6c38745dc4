"""Ctrl-C and SIGTERM: the first signal lets a command end in good order, which takes two seconds at most; the second
one ends it at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from qpdsl.cli.exits import Exit

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
_SHOW_CURSOR = b"\033[?25h"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Together less than two seconds: to end in good order, and for the last words of what did not.
_SECONDS_TO_END = 1.4
_SECONDS_FOR_LAST_WORDS = 0.4

# Whether the first signal gives a command all the time that it takes.
_patient = False
# What is said where the process is ended before it could say so itself; there is one process, and so one list.
_last_words: list[Callable[[], None]] = []


def watch_signals() -> None:
    """Has the process end within two seconds of the first signal, and at once at the second, whatever it is doing.

    A thread sees to it, since the handlers of signals run in the main thread only between two steps of Python, and what
    they raise can be caught there. No thread runs while the main thread is in a call that keeps Python's global lock.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), name="qpdsl signals", daemon=True).start()


def end_by_second_signal() -> None:
    """Has the process end at the second signal only, for a command that takes its time to end in good order."""
    global _patient
    _patient = True


def leave_signals_alone() -> None:
    """Undoes `watch_signals`, for a command that passes signals on to another process and waits for it."""
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)


@contextlib.contextmanager
def last_words(words: Callable[[], None]) -> Iterator[None]:
    """Calls `words`, from another thread, where the process is ended inside the block."""
    _last_words.append(words)
    try:
        yield
    finally:
        _last_words.remove(words)


def run_until_interrupted(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine; a signal cancels it, which comes out as KeyboardInterrupt."""
    import asyncio

    from qpdsl.executor.requests import engine_loop

    interrupted = threading.Event()

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        with _first_cancels(asyncio.get_running_loop(), task, interrupted):
            return await coroutine

    try:
        return engine_loop.run(guarded())
    except asyncio.CancelledError:
        if interrupted.is_set():
            raise KeyboardInterrupt from None
        raise


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Inside the block both signals raise KeyboardInterrupt, also in a job that a shell has put in the background."""

    def interrupt(number: int) -> None:
        raise KeyboardInterrupt

    with handled(interrupt):
        yield


@contextlib.contextmanager
def handled(handle: Callable[[int], None]) -> Iterator[None]:
    """Inside the block both signals call `handle` with their number. Only the main thread may do this; others do not.

    A plain handler runs between two calls into torch; one of an event loop would wait for the whole step.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda number, frame: handle(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _first_cancels(
    loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], interrupted: threading.Event
) -> Iterator[None]:
    def handle(number: int) -> None:
        if interrupted.is_set():
            _end()
        interrupted.set()
        loop.call_soon_threadsafe(task.cancel)

    with handled(handle):
        yield


def _watch(signals: int) -> None:
    """Reads the numbers of the signals as they come."""
    end: float | None = None
    signalled = False
    while True:
        left = None if end is None else max(end - time.monotonic(), 0)
        if not select.select([signals], [], [], left)[0]:
            speaker = threading.Thread(target=_speak, daemon=True)
            speaker.start()
            speaker.join(_SECONDS_FOR_LAST_WORDS)
            _end()
        for number in os.read(signals, 64):
            if number in _SIGNALS:
                if signalled:
                    _end()
                signalled = True
                end = None if _patient else time.monotonic() + _SECONDS_TO_END


def _speak() -> None:
    for words in list(_last_words):
        with contextlib.suppress(Exception):
            words()
    if not _last_words:
        print("interrupted", file=sys.stderr, flush=True)


def _end() -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), _SHOW_CURSOR)
    os._exit(Exit.INTERRUPTED)
