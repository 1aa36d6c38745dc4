"""The progress bar of a run over many rows, drawn from the session's events."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from qpdsl.executor.events.events import EngineStepped, Event
from qpdsl.executor.events.stream import EventStream

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_WINDOW = 5.0


class Rate:
    """Tokens a second over the last few seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._total = 0

    def add(self, at: float, tokens: int) -> None:
        self._seen.append((at, tokens))
        self._total += tokens
        while self._seen[0][0] < at - _WINDOW:
            self._total -= self._seen.popleft()[1]

    def per_second(self, now: float) -> float:
        if not self._seen:
            return 0.0
        return self._total / max(now - self._seen[0][0], 0.1)


class Bar:
    """Rows done of all, tokens a second, time left."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._rate = Rate()

    def row_done(self) -> None:
        self._progress.advance(self._task)

    def see(self, event: Event) -> None:
        """A reader of the event stream."""
        if isinstance(event, EngineStepped):
            self._rate.add(event.at, event.report.decode_tokens)
            self._progress.update(self._task, rate=f"{self._rate.per_second(time.monotonic()):,.0f}")


@contextlib.contextmanager
def progress_bar(events: EventStream, total: int, done: int, *, wanted: bool = True) -> Iterator[Bar | None]:
    """Shows a bar on stderr while the block runs; None, and nothing shown, where stderr is no terminal."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    progress = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows"),
        TextColumn("{task.fields[rate]} tokens/s"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with progress:
        bar = Bar(progress, progress.add_task("rows", total=total, completed=done, rate="0"))
        events.subscribe(bar.see)
        yield bar
