"""The one runner of rows: which row starts when, and what runs them, this process or the replicas of a cluster.

`start_rows` is the loop that starts rows, wherever they are from: those of a data set (`LocalRunner`), those that a
replica is sent, and those of a `map` in Python. Replicas are a `RowRunner` too, in `qpdsl/cluster`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.runs.data.input_row import InputRow, NumberedRow
from qpdsl.runs.job import Job, Through, run_row
from qpdsl.runs.row_outcome import FinishedRow, Outcome, SaveRows
from qpdsl.runs.start_order import in_start_order

if TYPE_CHECKING:
    from qpdsl.executor.runtime.instance.tools import CallStore
    from qpdsl.session.session import Session

T = TypeVar("T")


# How soon rows start: the sequences at work below which another one does, and how many run at once (None: any number).
Limits = tuple[int, int | None]


class RowRunner(Protocol):
    """Runs rows of several runs, in whatever order suits it."""

    async def run(self, rows: Sequence[NumberedRow], done: SaveRows) -> None:
        """Calls `done` in the event loop with every row, soon after it has ended, or else raises.

        However it ends, `done` was called with all rows that have ended, unless `done` itself has raised. An error of
        `done` ends the run; a row's own failure is part of its outcome. Raises ServerGone, BudgetReached and
        ModelError.
        """


async def _running(session: Session, rows: Coroutine[Any, Any, None]) -> None:
    async with session.running():
        await rows


@dataclass(frozen=True)
class LocalRunner:
    """Runs rows over one session, in which the models of all jobs are loaded; `jobs` are by the place of the run.

    Rows start in their order, each as the plan of its own job says, or `concurrency` of them at a time. Greedy decoding
    is run for the rows that have a reference. `drive` keeps the engine stepping while rows run. `through` has what puts
    an engine before the session's for a row, and `calls` what keeps the calls of tools of a run. `started` is called
    with each row that begins.
    """

    session: Session
    jobs: Sequence[Job]
    concurrency: int | None = None
    drive: Callable[[Session, Coroutine[Any, Any, None]], Awaitable[None]] = _running
    through: Callable[[NumberedRow], Through | None] = lambda row: None
    calls: Callable[[int], CallStore | None] = lambda run: None
    started: Callable[[NumberedRow], object] = lambda row: None

    async def run(self, rows: Sequence[NumberedRow], done: SaveRows) -> None:
        """See `RowRunner`."""

        def limits(row: NumberedRow) -> Limits:
            return row_limits(self.jobs[row.run].plan, self.concurrency)

        async def run(row: NumberedRow) -> None:
            self.started(row)
            outcome = await run_row(self.session, self.jobs[row.run], row.row, self.through(row), self.calls(row.run))
            done([FinishedRow(row.number, outcome, run=row.run)])

        await self.drive(self.session, start_rows(self.session, RowQueue(rows, closed=True), limits, run))


async def outcomes_of(
    session: Session,
    job: Job,
    rows: Iterable[InputRow],
    concurrency: int | None = None,
    done: Callable[[FinishedRow], object] = lambda row: None,
) -> list[Outcome]:
    """The outcomes of the rows of one job, in their order; `done` is called for each as it ends. See `LocalRunner`."""
    numbered, outcomes = [NumberedRow(number, row) for number, row in enumerate(rows)], dict[int, Outcome]()

    def ended(finished: Sequence[FinishedRow]) -> None:
        for row in finished:
            outcomes[row.number] = row.outcome
            done(row)

    await LocalRunner(session, [job], concurrency).run(in_start_order(numbered, lambda row: job.plan), ended)
    return [outcomes[row.number] for row in numbered]


def row_limits(plan: PhysicalPlan, concurrency: int | None) -> Limits:
    """How soon a row of a plan starts; a plan that does not say how many run at once runs one at a time."""
    return (plan.floor, plan.in_flight or 1) if concurrency is None else (0, concurrency)


class RowQueue(Generic[T]):
    """Rows that wait to start, in their order. More may come until the queue is closed; all in one event loop."""

    def __init__(self, rows: Iterable[T] = (), *, closed: bool = False) -> None:
        self._rows = deque(rows)
        self._closed = closed
        self._changed = asyncio.Event()

    def put(self, *rows: T) -> None:
        self._rows.extend(rows)
        self._changed.set()

    def close(self) -> None:
        """There are no more rows."""
        self._closed = True
        self._changed.set()

    def give_back(self, count: int) -> list[T]:
        """Takes out up to `count` of the last rows, which will not start."""
        return [self._rows.pop() for _ in range(min(count, len(self._rows)))]

    async def first(self) -> T | None:
        """The next row, which stays in the queue; None where there will be none."""
        while not self._rows and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        return self._rows[0] if self._rows else None

    def take(self) -> T | None:
        """The next row, taken out; None where there is none now."""
        return self._rows.popleft() if self._rows else None


async def start_rows(
    session: Session,
    queue: RowQueue[T],
    limits: Callable[[T], Limits],
    run: Callable[[T], Coroutine[Any, Any, None]],
) -> None:
    """Runs the rows of a queue, each once `limits` of it let it start, until the queue is closed and all have ended.

    The session's engine steps meanwhile. What `run` raises ends all rows, and is raised here.
    """
    admission = _Admission()

    async def admitted(row: T) -> None:
        try:
            await run(row)
        finally:
            admission.leave()

    try:
        async with asyncio.TaskGroup() as group:
            while (row := await queue.first()) is not None:
                admission.floor, admission.in_flight = limits(row)
                await admission.wait(session)
                taken = queue.take()
                if taken is None:
                    # It was given back in the meantime.
                    admission.leave()
                    continue
                group.create_task(admitted(taken))
                # The next row looks once this one has asked the engine for what it needs first.
                await session.settled()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


class _Admission:
    """Lets rows start one after another.

    One row always runs, whatever else the session does. Another starts while fewer than `in_flight` run and the engine
    has fewer sequences than `floor` to work at (0: any number).
    """

    def __init__(self) -> None:
        self.floor: int = 0
        self.in_flight: int | None = None
        self._running = 0
        self._ended: asyncio.Future[None] | None = None

    def leave(self) -> None:
        """A row has ended."""
        self._running -= 1
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def wait(self, session: Session) -> None:
        """Waits until a row may start. It counts as running until `leave` is called for it.

        The engine makes a step in every turn of the event loop, so a row is to start without a turn in between.
        """
        async with session.below(self.floor) as below:
            while self._running and (self._is_full() or not below.is_set()):
                ended = self._ended = asyncio.get_running_loop().create_future()
                changes = [ended]
                if not self._is_full():
                    changes.append(asyncio.ensure_future(below.wait()))
                try:
                    await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for change in changes:
                        change.cancel()
        self._running += 1

    def _is_full(self) -> bool:
        return self.in_flight is not None and self._running >= self.in_flight
