"""Rows over many replicas: every row is given out, and its outcome taken once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from qpdsl.cluster.backends.backend import ReplicaBackend
from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.dispatcher import Commands, Dispatcher
from qpdsl.cluster.fleet import Fleet, ReplicaFigures
from qpdsl.cluster.replica.messages import Begun, Done, GaveBack, ReplicaMessage, ReplicaSetup, Task
from qpdsl.cluster.row_scheduler import MAX_LOSSES
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.requests.request import Calls
from qpdsl.runs.data.input_row import NumberedRow
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import FinishedRow, Outcome, SaveRows


class ClusterRun:
    """Runs rows on the replicas of an address: a `RowRunner`.

    `jobs` are those of `setup`, in order. `at_work` is told of each row that runs, and of those that run no more and
    will again. For the other arguments see `Fleet`.
    """

    def __init__(
        self,
        address: ClusterAddress,
        setup: ReplicaSetup,
        jobs: Sequence[Job],
        events: EventStream,
        *,
        tell: Callable[[str], None] = lambda note: None,
        allow_mixed: bool = False,
        backend: ReplicaBackend | None = None,
        at_work: Callable[[NumberedRow, bool], None] = lambda row, runs: None,
    ) -> None:
        self._address = address
        self._jobs = jobs
        self._at_work = at_work
        models = tuple(dict.fromkeys(model for job in jobs for model in job.models.values()))
        self._fleet = Fleet(address, setup, models, self, events, tell=tell, allow_mixed=allow_mixed, backend=backend)

    @property
    def figures(self) -> list[ReplicaFigures]:
        """Of all replicas, in the order in which they were started."""
        return self._fleet.figures

    @property
    def calls(self) -> dict[str, Calls]:
        """What replicas took of servers, by model, of those that ended in good order."""
        return self._fleet.calls

    @property
    def mixed(self) -> list[str]:
        """The names of the replicas that differ from the first one."""
        return [figures.name for figures in self.figures if figures.differs]

    async def run(self, rows: Sequence[NumberedRow], done: SaveRows) -> None:
        """See `RowRunner`. Rows have the names of their replicas where these could differ, and only then.

        `done` is called with all that have ended since it was called last, so what came while it waited for the disk
        waits for the disk once. Raises what `Fleet.run` does.
        """
        tasks = (Task(place, row.row, row.run) for place, row in enumerate(rows))
        self._given = rows
        self._rows = Dispatcher(tasks, self._address.most, len(self._jobs))
        self._done = done
        self._ended: list[FinishedRow] = []
        self._something_ended = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hand_over_all())
                group.create_task(self._fleet.run(min(self._address.least, len(rows))))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    @property
    def finished(self) -> bool:
        """See `FleetWork`."""
        return self._rows.finished

    @property
    def waiting(self) -> int:
        """See `FleetWork`."""
        return self._rows.waiting

    @property
    def idle(self) -> list[str]:
        """See `FleetWork`."""
        return self._rows.idle

    def expect(self, replicas: int) -> None:
        """See `FleetWork`."""
        self._rows.expected = replicas

    def joined(self, figures: ReplicaFigures) -> None:
        """See `FleetWork`: it gets its first rows."""
        self._send(self._rows.join(figures.name))
        self._check_finished()

    def heard(self, figures: ReplicaFigures, clock: float, message: ReplicaMessage) -> None:
        """See `FleetWork`."""
        name = figures.name
        match message:
            case Begun(number=number):
                self._send(self._rows.begun(name, number))
                self._at_work(self._given[number], True)
            case Done(number=number, outcome=outcome):
                task, commands = self._rows.done(name, number)
                self._send(commands)
                if task is not None:
                    figures.rows += 1
                    figures.tokens += outcome.tokens_out
                    self._end(task, outcome, name)
            case GaveBack(numbers=numbers):
                self._send(self._rows.gave_back(name, numbers))
        self._check_finished()

    def left(self, figures: ReplicaFigures) -> str:
        """See `FleetWork`: its rows run again, but for those that were under way too often, which fail."""
        departure = self._rows.leave(figures.name, blames=figures.lost is not None)
        for number in departure.again:
            self._at_work(self._given[number], False)
        self._send(departure.commands)
        for task in departure.failed:
            error = f"{MAX_LOSSES} replicas were lost while they ran this row; the last one {figures.lost}"
            self._end(task, self._failed(task, error), figures.name)
        self._check_finished()
        return f"{len(departure.again)} rows run again"

    def _check_finished(self) -> None:
        if self._rows.finished:
            self._something_ended.set()
            self._fleet.stop_all()

    def _failed(self, task: Task, error: str) -> Outcome:
        applies = self._jobs[task.job].grader.applies(task.row)
        return Outcome(
            id=task.row.id,
            answer=None,
            score=None,
            tokens_in=0,
            tokens_out=0,
            near_ties=0,
            seconds=0.0,
            correct=False if applies else None,
            error=error,
        )

    def _end(self, task: Task, outcome: Outcome, replica: str) -> None:
        row = self._given[task.number]
        self._ended.append(FinishedRow(row.number, outcome, replica, run=row.run))
        self._something_ended.set()

    async def _hand_over_all(self) -> None:
        """Hands over rows as they end, until there are no more."""
        try:
            while not self._rows.finished or self._ended:
                await self._something_ended.wait()
                self._something_ended.clear()
                self._hand_over()
        finally:
            # Where the run is interrupted, before replicas are ended, which takes longer.
            self._hand_over()

    def _hand_over(self) -> None:
        """Calls `done` with the rows that have ended since it was called last."""
        ended, self._ended = self._ended, []
        if ended:
            self._done(ended if self.mixed else [replace(row, replica=None) for row in ended])

    def _send(self, commands: Commands) -> None:
        for replica, command in commands:
            self._fleet.send(replica, command)
