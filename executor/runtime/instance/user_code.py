"""Calling a user's Python code so that whatever it does stays its own affair.

It may raise anything, SystemExit too, take for ever, or leave work running. None of that may end or hold up the event
loop that the engine steps in, other rows, or Python when it ends. So a plain function is called in a daemon thread of
its own (`CallThread`), and an `async` one runs in the event loop that the program was called in, or else in a loop of a
daemon thread (`in_loop`). What goes wrong comes back as words.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from pathlib import Path
from typing import Any, Generic, TypeVar

from qpdsl.executor.runtime.instance.row_tasks import RowClock

T = TypeVar("T")

# The event loop that a program was called in, None if there was none.
caller_loop: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("caller_loop", default=None)

# The end of the name of a thread whose call does not come back, or was given up.
LEFT_RUNNING = " (left running)"

# After so many seconds a call no longer holds up those behind it.
_PATIENCE = 10.0
_LONGEST_REASON = 500
_OWN = f"{__name__.partition('.')[0]}."


class UserCodeError(Exception):
    """The user's code raised; the message says what, and where, and the cause is what it raised."""


class _Raised:
    """What came instead of a value."""

    def __init__(self, reason: str, error: BaseException | None = None) -> None:
        self.reason, self.error = reason, error


class CallThread:
    """A daemon thread for the calls of one function, which are made one at a time, in the order in which they came.

    Two calls run side by side only where the first one was given up, or has held up the second for ten seconds: the
    thread is then left to its call, and a new one takes over.
    """

    def __init__(self, name: str) -> None:
        self._name = f"qpdsl function {name}"
        self._changed = threading.Condition()
        self._waiting: deque[_Turn[Any]] = deque()
        self._thread: threading.Thread | None = None
        self._turn: _Turn[Any] | None = None
        self._closed = False

    async def run(self, calls: Sequence[Callable[[], T]], clock: RowClock) -> list[T]:
        """What the calls give, made one after another, without another's in between. Raises UserCodeError.

        `clock` stands while calls of others are waited for. Where the caller is cancelled the calls are given up: they
        are not made, or the end of the one that was begun is not waited for.
        """
        turn = _Turn(calls)
        self._add(turn)
        try:
            begun = asyncio.wrap_future(turn.begun)
            with clock.paused():
                while not (await asyncio.wait({begun}, timeout=_PATIENCE / 4))[0]:
                    self._pass_over()
            outcome = await asyncio.wrap_future(turn.done)
        except BaseException:
            self._give_up(turn)
            raise
        return _value(outcome)

    def close(self) -> None:
        """Ends the thread once it has nothing to do."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _add(self, turn: _Turn[Any]) -> None:
        with self._changed:
            if self._thread is None:
                self._start()
            self._waiting.append(turn)
            self._changed.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise UserCodeError("the system has no thread left to call it in") from error
        self._thread = thread

    def _serve(self) -> None:
        while (turn := self._next()) is not None:
            turn.run()
            del turn

    def _next(self) -> _Turn[Any] | None:
        """The next call for this thread; None where it has been replaced, or there will be no more."""
        with self._changed:
            if self._thread is not threading.current_thread():
                return None
            self._turn = None
            while True:
                while not self._waiting:
                    if self._closed:
                        self._thread = None
                        return None
                    self._changed.wait()
                turn = self._waiting.popleft()
                if turn.begun.set_running_or_notify_cancel():
                    turn.since = time.monotonic()
                    self._turn = turn
                    return turn

    def _pass_over(self) -> None:
        """Gives those who wait a new thread, where the call before them takes too long."""
        with self._changed:
            if self._turn is not None and time.monotonic() - self._turn.since >= _PATIENCE:
                self._replace()

    def _give_up(self, turn: _Turn[Any]) -> None:
        with self._changed:
            if not turn.begun.cancel() and self._turn is turn:
                self._replace()

    def _replace(self) -> None:
        assert self._thread is not None
        self._thread.name += LEFT_RUNNING
        self._thread = self._turn = None
        if self._waiting:
            self._start()


class _Turn(Generic[T]):
    """Calls that are made together. `begun` is resolved when the first is made, `done` when the last has come back."""

    def __init__(self, calls: Sequence[Callable[[], T]]) -> None:
        self.begun: Future[None] = Future()
        self.done: Future[list[T] | _Raised] = Future()
        self.since = 0.0
        self._calls = calls
        self._context: Context = copy_context()

    def run(self) -> None:
        self.begun.set_result(None)
        outcome = self._context.run(self._outcome)
        if self.done.set_running_or_notify_cancel():
            self.done.set_result(outcome)

    def _outcome(self) -> list[T] | _Raised:
        values: list[T] = []
        for call in self._calls:
            if self.done.cancelled():
                break
            self.since = time.monotonic()
            try:
                values.append(call())
            except BaseException as error:  # a user's function may raise anything
                return _Raised(raised(error), error)
        return values


async def in_thread(name: str, call: Callable[[], T]) -> T:
    """What a call gives, made at once in a daemon thread of its own. Raises UserCodeError.

    Where the caller is cancelled the end of the call is not waited for.
    """
    done: Future[T | _Raised] = Future()
    context = copy_context()

    def outcome() -> T | _Raised:
        try:
            return call()
        except BaseException as error:  # a user's function may raise anything
            return _Raised(raised(error), error)

    def work() -> None:
        found = context.run(outcome)
        if done.set_running_or_notify_cancel():
            done.set_result(found)

    try:
        threading.Thread(target=work, name=f"qpdsl tool {name}", daemon=True).start()
    except RuntimeError as error:
        raise UserCodeError("the system has no thread left to call it in") from error
    return _value(await asyncio.wrap_future(done))


async def in_loop(work: Callable[[], Awaitable[T]], clock: RowClock) -> T:
    """What awaiting `work()` gives, in the loop that the program was called in, or else in one that all share.

    `clock` stands while a call that blocks the shared loop is waited for; after ten seconds that loop is left to it,
    and a new one takes over. Raises UserCodeError.
    """
    caller = caller_loop.get()
    while True:
        begun: Future[None] = Future()
        loop = caller or _shared.loop()
        outcome: asyncio.Future[T | _Raised] = _submit(_awaited(work, begun), loop)
        try:
            if caller is None and not await _begins(begun, clock):
                _shared.leave(loop)
                continue
            return _value(await outcome)
        finally:
            outcome.cancel()


async def _begins(begun: Future[None], clock: RowClock) -> bool:
    """Whether a call is made before patience ends. Where it was not, it never will be."""
    with clock.paused():
        await asyncio.wait({asyncio.wrap_future(begun)}, timeout=_PATIENCE)
    return not begun.cancel()


def _submit(coroutine: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
    try:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))
    except RuntimeError as error:
        coroutine.close()
        raise UserCodeError("the event loop that the program was called in is closed") from error


async def _awaited(work: Callable[[], Awaitable[T]], begun: Future[None]) -> T | _Raised:
    if not begun.set_running_or_notify_cancel():
        return _Raised("given up")
    begun.set_result(None)
    try:
        return await work()
    except BaseException as error:  # a user's function may raise anything
        # In the main thread this is the user's Ctrl-C.
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return _Raised(raised(error), error)


class _SharedLoop:
    """The event loop of functions that were not called in one, in a daemon thread that is started when needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._loop.set_default_executor(_DaemonThreads())
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="qpdsl async functions", daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError as error:
                    raise UserCodeError("the system has no thread left to call it in") from error
            return self._loop

    def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Has the next call start a new loop in place of this one."""
        with self._lock:
            if self._loop is loop and self._thread is not None:
                self._thread.name += LEFT_RUNNING
                self._loop = self._thread = None


class _DaemonThreads(ThreadPoolExecutor):
    """What `asyncio.to_thread` uses in the shared loop: Python does not wait at its end for a call that hangs."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            try:
                value = fn(*args, **kwargs)
            except BaseException as error:
                failure = error if isinstance(error, Exception) else UserCodeError(raised(error))
                with contextlib.suppress(Exception):
                    future.set_exception(failure)
            else:
                with contextlib.suppress(Exception):
                    future.set_result(value)

        threading.Thread(target=work, name="qpdsl function in a thread", daemon=True).start()
        return future


_shared = _SharedLoop()


def _value(outcome: T | _Raised) -> T:
    if isinstance(outcome, _Raised):
        raise UserCodeError(outcome.reason) from outcome.error
    return outcome


def raised(error: BaseException) -> str:
    """What was raised and where, on one line that UTF-8 can hold. It never raises itself."""
    return f"{named(error)}{_line(error)}".encode("utf-8", "backslashreplace").decode()


def named(error: BaseException) -> str:
    """What was raised, by its name and text, on one line that UTF-8 can hold. It never raises itself."""
    try:
        name = str(type(error).__name__)
    except BaseException:
        name = "an exception without a name"
    try:
        reason = " ".join(f"{name}: {error}".split()).rstrip(":")
    except BaseException:
        reason = f"{name}, whose text cannot be shown"
    if len(reason) > _LONGEST_REASON:
        reason = f"{reason[: _LONGEST_REASON - 1]}…"
    return reason.encode("utf-8", "backslashreplace").decode()


def _line(error: BaseException) -> str:
    """Where it was raised: the innermost line of the file that the function stands in."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not str(frame.f_globals.get("__name__")).startswith(_OWN)
    ]
    in_file = [line for file, line in frames if file == frames[0][0]]
    return f" ({Path(frames[0][0]).name}, line {in_file[-1]})" if in_file else ""
