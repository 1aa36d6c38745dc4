"""The thread in which programs run: one event loop, in which every session's engine steps while it has work.

Whoever calls a program, from a thread or from an event loop of their own, waits for what that loop gives. So calls of
any kind can run side by side and inside one another, and no caller's event loop stands still while a model computes.

MERGED: One run of a program, in the thread that runs programs.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from qpdsl.api.results import Result, Tokens
from qpdsl.dataset.admission import Gate
from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.planner.plan.evaluate import Value
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.session import Session
from qpdsl.sources.functions import home

if TYPE_CHECKING:
    from qpdsl.session import Session


T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_drives: WeakKeyDictionary[Session, _Drive] = WeakKeyDictionary()


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Starts a coroutine in the thread. Cancelling the future cancels it."""
    try:
        caller: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        caller = None

    async def run() -> T:
        home.set(caller)
        return await coroutine

    return asyncio.run_coroutine_threadsafe(run(), _started())


async def driven(session: Session, coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine, in the thread, while the session's engine steps; an error of the engine ends it."""
    drive = _drives.setdefault(session, _Drive())
    work: asyncio.Task[T] | None = None
    try:
        engine = await drive.enter(session)
        work = asyncio.create_task(coroutine)
        await asyncio.wait({work, engine}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise engine.exception() or RuntimeError("the engine stopped")
        return work.result()
    finally:
        if work is None:
            coroutine.close()
        else:
            work.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await work
        await asyncio.shield(asyncio.ensure_future(drive.leave()))


class _Drive:
    """Keeps one session running for as long as anyone needs it."""

    def __init__(self) -> None:
        self._users = 0
        self._lock = asyncio.Lock()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def enter(self, session: Session) -> asyncio.Task[None]:
        self._users += 1
        async with self._lock:
            if self._task is None or self._task.done():
                self._stop.clear()
                self._task = asyncio.create_task(self._run(session))
            return self._task

    async def leave(self) -> None:
        async with self._lock:
            self._users -= 1
            if not self._users and self._task is not None:
                self._stop.set()
                await asyncio.wait({self._task})
                self._task = None

    async def _run(self, session: Session) -> None:
        async with session.running():
            await self._stop.wait()


def _started() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_loop.run_forever, name="qpdsl", daemon=True)
            thread.start()
            atexit.register(_ended, _loop, thread)
        return _loop


def _ended(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """A thread that computes while Python shuts down would crash it."""
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


R = TypeVar("R")
OnToken = Callable[[tuple[int, ...], int, str], None]


async def run(
    session: Session,
    plan: PhysicalPlan,
    arguments: Mapping[str, Value],
    seed: int,
    functions: Mapping[str, PythonFunction],
    convert: Callable[[Any], R] | None,
    id: str,
    index: int,
    on_token: OnToken | None = None,
    gate: Gate | None = None,
) -> Result[R]:
    """Loads the models that the plan needs, and runs it when `gate` lets it. Raises ModelError."""
    session.load(plan)
    work = session.run(plan, arguments, seed, id, functions=functions, on_token=on_token)
    found = await driven(session, work if gate is None else gate.run(session, work))
    value: Any = found.value
    error = found.error
    if error is None and convert is not None:
        try:
            value = convert(value)
        except ValueError as invalid:  # pydantic's ValidationError is one
            error = f"the output is not valid: {invalid}"
    return Result(
        score=found.score,
        rows=tuple(dict(row.columns) for row in found.rows),
        tokens=Tokens(found.prompt_tokens, found.sampled_tokens),
        near_ties=found.near_ties,
        seconds=found.seconds,
        error=error,
        index=index,
        id=id,
        _value=value,
    )
