"""The thread in which programs run: one event loop, in which every session's engine steps while it has work.

A caller waits for a result of that loop, from a thread or from an event loop of its own. So calls of any kind can run
side by side and inside one another, and no caller's event loop stands still while a model computes.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import json
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from qpdsl.api.candidate import Candidate
from qpdsl.api.results import Result, Tokens
from qpdsl.errors import UsageError
from qpdsl.executor.requests.engine_loop import EngineLoop
from qpdsl.executor.runtime.instance.row_tasks import RowClock
from qpdsl.executor.runtime.instance.user_code import CallThread, UserCodeError, caller_loop
from qpdsl.planner.values.value import Value, thawed

if TYPE_CHECKING:
    from qpdsl.executor.runtime.instance.candidates import Row
    from qpdsl.executor.runtime.instance.functions import PythonFunction
    from qpdsl.planner.plan.physical import PhysicalPlan
    from qpdsl.session.session import Session

R = TypeVar("R")
T = TypeVar("T")
OnToken = Callable[[tuple[int, ...], int, str, bool], None]

# A step of the engine that takes longer than this does not keep Python from ending.
_SECONDS_TO_END = 1.0

# The tokens of the programs that the functions of the run around the caller have called.
_inner: ContextVar[list[Tokens] | None] = ContextVar("inner", default=None)

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_is_forked = False
_conversions = CallThread("output")
_drivers: WeakKeyDictionary[Session, _Driver] = WeakKeyDictionary()


def submit(coroutine: Coroutine[Any, Any, T], caller: asyncio.AbstractEventLoop | None = None) -> Future[T]:
    """Starts a coroutine in the thread. Cancelling the future cancels it.

    `caller` is the event loop that goes on meanwhile, in which asynchronous functions of a program are awaited. Raises
    UsageError in a process that was forked from one in which the thread ran.
    """
    if _is_forked:
        coroutine.close()
        raise UsageError(
            "programs ran in this process before it was forked, and threads do not outlive a fork: start processes "
            'with `multiprocessing.get_context("spawn")`'
        )
    # A function of a program that is running has called another one.
    outer = _inner.get()

    async def submitted() -> T:
        caller_loop.set(caller)
        _inner.set(outer)
        return await coroutine

    return asyncio.run_coroutine_threadsafe(submitted(), _background_loop())


def call_soon(function: Callable[..., object], *args: object) -> None:
    """Calls a function in the thread, soon."""
    _background_loop().call_soon_threadsafe(function, *args)


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in the thread, and waits for it to end: also where the caller is interrupted, who cancels it."""
    begun, ended = threading.Event(), threading.Event()

    async def told() -> T:
        begun.set()
        try:
            return await coroutine
        finally:
            ended.set()

    future = submit(told())
    try:
        return future.result()
    except BaseException:
        # What is cancelled before it has begun never ends.
        begun.wait()
        future.cancel()
        ended.wait()
        raise


@dataclass(frozen=True)
class ProgramCall(Generic[R]):
    """One run of a program over a session. `convert` makes the program's value Python's.

    After `timeout` seconds the run has failed. `id` and `index` are those of a row of `map`. Runs of a lower `priority`
    go first.
    """

    session: Session
    plan: PhysicalPlan
    arguments: Mapping[str, Value]
    seed: int
    functions: Mapping[str, PythonFunction]
    convert: Callable[[Any], R] | None
    timeout: float | None
    id: str = ""
    index: int = 0
    priority: int = 0

    async def alone(self, on_token: OnToken | None = None) -> Result[R]:
        """Loads the models that the plan needs, and runs it, in the thread. Raises ModelError, and faults of qpdsl."""
        return await driven(self.session, self.run(on_token, alone=True))

    async def run(self, on_token: OnToken | None = None, *, alone: bool = False) -> Result[R]:
        """The same while the session's engine steps. One of many keeps a fault of qpdsl in its result."""
        self.session.load(self.plan)
        caller, inner = _inner.get(), list[Tokens]()
        _inner.set(inner)
        outcome = await self.session.run(
            self.plan,
            self.arguments,
            self.seed,
            self.id,
            functions=self.functions,
            on_token=on_token,
            timeout=self.timeout,
            priority=self.priority,
        )
        if alone and outcome.fault is not None:
            raise outcome.fault
        value: Any = outcome.value
        error = outcome.error
        if error is None and value is not None and self.convert is not None:
            value, error = await _converted(self.convert, value, self.timeout)
        prompt = outcome.prompt_tokens + sum(tokens.prompt for tokens in inner)
        tokens = Tokens(prompt, outcome.sampled_tokens + sum(tokens.sampled for tokens in inner))
        if caller is not None:
            caller.append(tokens)
        candidates = tuple(map(_candidate, outcome.rows))
        return Result(
            score=outcome.score,
            rows=tuple(candidate.columns for candidate in candidates),
            candidates=candidates,
            tokens=tokens,
            near_ties=outcome.near_ties,
            unscored=outcome.unscored,
            seconds=outcome.seconds,
            error=error,
            index=self.index,
            id=self.id,
            _value=value,
            _cause=outcome.cause,
        )


def _candidate(row: Row) -> Candidate:
    """A row as whoever called the program sees it."""
    columns = {name: thawed(value) for name, value in row.columns.items()}
    generated, context = row.generated, row.context
    turns = [] if context is None else [_message(*turn) for turn in context.turns]
    if context is not None and context.prompt:
        turns.append({"content": "".join(text for text, _ in context.prompt) + generated.text})
    elif generated.text:
        turns.append(_message("assistant", generated.text, generated.thought.text or ""))
    parts = (generated.text, generated.tokens, generated.logprob, columns, tuple(turns), tuple(row.path))
    return Candidate(*parts, generated.thought.text)


def _message(role: str, text: str, thought: str = "", calls: str = "") -> dict[str, Any]:
    thoughts = {"reasoning_content": thought} if thought else {}
    return {"role": role, "content": text, **thoughts, **(json.loads(calls) if calls else {})}


async def _converted(convert: Callable[[Any], R], value: Any, timeout: float | None) -> tuple[R | None, str | None]:
    """The value as one of Python, or why it is none. A model of pydantic may have validators, which are user code."""

    def converted() -> tuple[R | None, str | None]:
        try:
            return convert(value), None
        except ValueError as invalid:  # pydantic's ValidationError is one
            return None, f"the output is not valid: {invalid}"

    try:
        async with RowClock(timeout) as clock:
            (outcome,) = await _conversions.run([converted], clock)
    except UserCodeError as failure:
        return None, f"the output is not valid: {failure}"
    except TimeoutError:
        return None, f"timed out: making the output took more than {timeout:g} s"
    return outcome


async def driven(session: Session, coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine while the session's engine steps. An error of the engine ends it."""
    driver = _drivers.setdefault(session, _Driver())
    task: asyncio.Task[T] | None = None
    try:
        engine = await driver.enter(session)
        task = asyncio.create_task(coroutine)
        await asyncio.wait({task, engine}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise engine.exception() or RuntimeError("the engine stopped")
        if task.cancelled():
            raise RuntimeError("the run was cancelled from within")
        return task.result()
    finally:
        if task is None:
            coroutine.close()
        else:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
        await asyncio.shield(asyncio.ensure_future(driver.leave()))


class _Driver:
    """Keeps the engine of one session stepping for as long as a run needs it."""

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
                self._task = asyncio.create_task(self._drive(session))
            return self._task

    async def leave(self) -> None:
        async with self._lock:
            self._users -= 1
            if not self._users and self._task is not None:
                self._stop.set()
                await asyncio.wait({self._task})
                self._task = None

    async def _drive(self, session: Session) -> None:
        async with session.running():
            await self._stop.wait()


def _background_loop() -> asyncio.AbstractEventLoop:
    """The loop of the thread, which is started when it is first needed."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = EngineLoop()
            thread = threading.Thread(target=_loop.run_forever, name="qpdsl", daemon=True)
            thread.start()
            atexit.register(_stop, _loop, thread)
        return _loop


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Ends the thread: one that computes while Python shuts down would crash it."""
    if _is_forked:
        return
    loop.call_soon_threadsafe(loop.stop)
    thread.join(_SECONDS_TO_END)
    while thread.is_alive() and thread.ident is not None:
        # It is in a long step, or loads a model: this ends it between two calls into torch.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        thread.join(_SECONDS_TO_END)


def _forked() -> None:
    global _is_forked, _lock
    _lock = threading.Lock()
    _is_forked = _loop is not None


os.register_at_fork(after_in_child=_forked)
