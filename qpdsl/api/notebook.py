"""Programs that are called in the cell of a notebook: the cell waits for them, and shows how far they are.

The kernel runs cells in an event loop. A cell may keep that loop waiting, as the programs run in a thread of their own;
elsewhere a call that keeps a loop waiting is refused, since others would wait with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from html import escape
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from qpdsl.executor.events.events import Event, OperatorDone
from qpdsl.progress_words import ProgressWords

if TYPE_CHECKING:
    from qpdsl.planner.plan.physical import PhysicalPlan
    from qpdsl.session.session import Session

T = TypeVar("T")
# What is quicker shows nothing; what is slower is told of so often, in seconds.
_QUICK = 0.5
_OFTEN = 0.2


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


class ProgressLine:
    """A line below the cell that says what `line` does, while there is something to wait for. Elsewhere nothing."""

    def __init__(self, line: Callable[[], str]) -> None:
        self._line = line
        self._begun = time.monotonic()
        self._shown: Any = None
        self._needed = in_notebook()

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
                return queue.get(timeout=_OFTEN)
            self.show()
        return queue.get()

    def show(self) -> None:
        """Brings the line up to date."""
        seconds = time.monotonic() - self._begun
        if self._needed and seconds >= _QUICK:
            self._put(f"{self._line()} · {seconds:.0f} s")

    @contextlib.contextmanager
    def shown(self) -> Iterator[ProgressLine]:
        """Takes the line away at the end."""
        try:
            yield self
        finally:
            if self._shown is not None:
                self._put("")
            self._needed, self._shown = False, None

    @contextlib.asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Shows the line while others of this loop work, and takes it away at the end."""
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

    def _put(self, text: str) -> None:
        shower = import_module("IPython.display")
        html = shower.HTML(f'<span style="opacity:0.65">{escape(text)}</span>' if text else "")
        if self._shown is None:
            self._shown = shower.display(html, display_id=True)
        else:
            self._shown.update(html)


@contextlib.contextmanager
def run_progress(session: Session, plan: PhysicalPlan) -> Iterator[ProgressLine]:
    """Shows what the operators of a run came to last, and how many tokens it has sampled."""
    if not in_notebook():
        yield ProgressLine(lambda: "")
        return
    words, latest, sampled = ProgressWords(plan), "waiting", 0

    def see(event: Event) -> None:
        nonlocal latest, sampled
        if isinstance(event, OperatorDone):
            latest, sampled = words.line(event), sampled + event.sampled_tokens

    progress = ProgressLine(lambda: f"{plan.name}: {latest} · {sampled:,} tokens in all")
    end = session.events.subscribe(see)
    try:
        with progress.shown():
            yield progress
    finally:
        end()
