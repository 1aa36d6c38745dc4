"""Programs that are called in the cell of a notebook: the cell waits for them, and shows what the report page would.

The kernel runs cells in an event loop. A cell may keep that loop waiting, as the programs run in a thread of their own;
elsewhere a call that keeps a loop waiting is refused, since others would wait with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from qpdsl.api.results import Result
from qpdsl.api.seen_run import SeenRun, add, state_of
from qpdsl.executor.events.events import (
    Detail,
    Event,
    InstanceDone,
    InstanceStarted,
    OperatorStarted,
    RowDone,
    RunEnded,
)

if TYPE_CHECKING:
    from qpdsl.api.background import ProgramCall
    from qpdsl.session.session import Session
    from qpdsl.tui.state.run_state import RunState

T = TypeVar("T")
# What is quicker shows nothing; what is slower is drawn so often, in seconds.
_QUICK = 0.5
_OFTEN = 0.3


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def not_in_a_loop(instead: str, *, in_cells: bool = True) -> None:
    """Raises RuntimeError where an event loop runs in this thread; `instead` says what to write there.

    A cell of a notebook may keep its loop waiting, unless what it calls runs loops in its own thread: not `in_cells`.
    """
    if in_cells and in_notebook():
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"an event loop is running here, and this call would block it: write {instead}")


class RunsShown:
    """Shows below a cell how far runs are while they are waited for, and keeps what their results show of them.

    Elsewhere than in a notebook nothing is looked at. Events are taken in the thread of the runs, and read in the
    caller's. `rows` is how many runs there will be, None where nobody knows; with `stays` the last of it remains.
    """

    def __init__(self, rows: int | None, *, stays: bool = False) -> None:
        self._needed = in_notebook()
        self._rows, self._stays = rows, stays
        self._begun, self._drawn_at = time.monotonic(), 0.0
        self._shown: Any = None
        self._taken: SimpleQueue[Event] = SimpleQueue()
        self._sessions: dict[Session, Callable[[], None]] = {}
        self._calls: dict[str, ProgramCall[Any]] = {}
        self._events: defaultdict[str, list[Event]] = defaultdict(list)
        self._at_work: Counter[str] = Counter()
        # Runs of one name at once, whose events cannot be told apart.
        self._mixed: set[str] = set()
        self._waiting: list[Event] = []
        self._state: RunState | None = None

    def add(self, call: ProgramCall[Any]) -> None:
        """Looks at a run from its begin on."""
        if self._needed:
            if call.session not in self._sessions:
                self._sessions[call.session] = call.session.events.subscribe(self._taken.put, details=True)
            self._calls[call.id] = call

    def seen(self, result: Result[T]) -> Result[T]:
        """The result of a run, with what was seen of it."""
        self._read()
        call = self._calls.pop(result.id, None)
        if call is None:
            return result
        events = self._events.pop(result.id, [])
        prompt, sampled = result.tokens
        answer = "" if result.error is not None else str(result.value)
        self._waiting.append(
            RowDone(
                row=result.id,
                answer=answer,
                score=result.score,
                prompt_tokens=prompt,
                sampled_tokens=sampled,
                seconds=result.seconds,
                error=result.error,
            )
        )
        if result.id in self._mixed:
            return result
        return replace(result, _seen=SeenRun(call.plan, _asked(call), tuple(events)))

    def result(self, future: Future[T]) -> T:
        """The result of a future, waited for in this thread."""
        while self._needed:
            with contextlib.suppress(TimeoutError):
                return future.result(_OFTEN)
            if future.done():
                break
            self.show()
        return future.result()

    def next_of(self, queue: SimpleQueue[T]) -> T:
        """What comes next in a queue, waited for in this thread."""
        while self._needed:
            with contextlib.suppress(Empty):
                result = queue.get(timeout=_OFTEN)
                self.show()
                return result
            self.show()
        return queue.get()

    def show(self) -> None:
        """Draws what is new, where it is time for that."""
        now = time.monotonic()
        if self._needed and now - self._begun >= _QUICK and now - self._drawn_at >= _OFTEN:
            self._drawn_at = now
            self._draw()

    @contextlib.contextmanager
    def shown(self) -> Iterator[RunsShown]:
        """Shows runs in the block."""
        try:
            yield self
        finally:
            for end in self._sessions.values():
                end()
            if self._shown is not None:
                if self._stays:
                    self._draw(ended=True)
                else:
                    self._put("", "")
            self._needed, self._shown = False, None

    @contextlib.asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Shows them while others of this loop work."""
        if not self._needed:
            yield
            return

        async def showing() -> None:
            while True:
                await asyncio.sleep(_OFTEN)
                self.show()

        task = asyncio.create_task(showing())
        with self.shown():
            try:
                yield
            finally:
                task.cancel()

    def _read(self) -> None:
        """Takes what was emitted by now; of runs that are not these, nothing."""
        while not self._taken.empty():
            event = self._taken.get()
            name = getattr(event, "instance", None)
            if isinstance(event, InstanceStarted):
                self._at_work[event.instance] += 1
                if self._at_work[event.instance] > 1:
                    self._mixed.add(event.instance)
            elif isinstance(event, InstanceDone):
                self._at_work[event.instance] -= 1
            if name is not None and name not in self._calls:
                continue
            if name is not None:
                self._events[name].append(event)
            elif self._rows == 1 and len(self._calls) == 1:
                self._events[next(iter(self._calls))].append(event)
            if not isinstance(event, Detail) or isinstance(event, OperatorStarted):
                self._waiting.append(event)

    def _draw(self, *, ended: bool = False) -> None:
        from qpdsl.tui.report.cell import runs_cell, runs_line

        self._read()
        if self._state is None and self._calls:
            plan = next(iter(self._calls.values())).plan
            self._state = state_of(plan, self._rows or 0, {id: _asked(call) for id, call in self._calls.items()})
        if self._state is not None:
            for event in self._waiting:
                add(self._state, event, self._begun)
            self._waiting.clear()
            self._state.now = time.monotonic() - self._begun
            if ended:
                add(self._state, RunEnded(status="done"), self._begun)
            self._put(runs_cell(self._state), runs_line(self._state))

    def _put(self, html: str, line: str) -> None:
        """What shows no HTML shows the line."""
        bundle = {"text/html": html, "text/plain": line}
        if self._shown is None:
            self._shown = import_module("IPython.display").display(bundle, raw=True, display_id=True)
        else:
            self._shown.update(bundle, raw=True)


def _asked(call: ProgramCall[Any]) -> str:
    """The first text among its arguments."""
    return next((value for value in call.arguments.values() if isinstance(value, str)), "")
