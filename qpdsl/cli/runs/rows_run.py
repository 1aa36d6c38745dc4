"""What `qpdsl run --input` and `qpdsl eval` share: rows of one or many cells run, here or on replicas, and are saved.

However the command ends, finished rows are not lost, and it is said how to go on from them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from qpdsl.cli.console import say
from qpdsl.cli.exits import Exit
from qpdsl.cli.signals import last_words, run_until_interrupted
from qpdsl.cli.watched import WatchedProcess
from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.cluster_run import ClusterRun
from qpdsl.cluster.replica.row_work import setup_of_rows
from qpdsl.executor.events.events import CellReached, RunEnded
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.requests.errors import BudgetReached, ServerGone
from qpdsl.executor.requests.request import Calls
from qpdsl.runs.data.input_row import NumberedRow
from qpdsl.runs.graders.judge_program import bind_grader
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import FinishedRow, SaveRows
from qpdsl.runs.runner import LocalRunner, RowRunner
from qpdsl.runs.summary import aligned
from qpdsl.runs.sweep import Sweep
from qpdsl.runs.sweep_progress import SweepProgress
from qpdsl.runs.usage import call_facts, total_calls
from qpdsl.session.settings import Settings
from qpdsl.session.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.runs.store.run_file import RunFile
    from qpdsl.session.session import Session

# Of more replicas than that, those alone are told of that were lost, or that differ.
_MAX_TOLD = 16
Options = TypeVar("Options", bound=Settings)


class ReplicaRows:
    """A `RowRunner` over the replicas that the settings name. `saves` is the run whose events have them.

    `at_work`: see `ClusterRun`.
    """

    def __init__(
        self,
        settings: Settings,
        jobs: Sequence[Job],
        surroundings: Surroundings,
        events: EventStream,
        saves: RunFile | None = None,
        at_work: Callable[[NumberedRow, bool], None] = lambda row, runs: None,
    ) -> None:
        assert settings.cluster is not None
        address, mixed = ClusterAddress.parse(settings.cluster), settings.allow_mixed
        python, concurrency = settings.python, settings.concurrency
        setup = setup_of_rows(jobs, settings, python=python, surroundings=surroundings, concurrency=concurrency)
        self._saves = saves
        self._cluster = ClusterRun(address, setup, jobs, events, tell=self._note, allow_mixed=mixed, at_work=at_work)

    async def run(self, rows: Sequence[NumberedRow], done: SaveRows) -> None:
        """See `RowRunner`. What the replicas did is saved, however it ends."""
        try:
            await self._cluster.run(rows, done)
        finally:
            if self._saves is not None:
                self._saves.event("replicas", replicas=[figures.to_json() for figures in self._cluster.figures])

    @property
    def calls(self) -> dict[str, Calls]:
        """What replicas took of servers, by model, of those that ended in good order."""
        return self._cluster.calls

    def tell(self) -> None:
        """Says what each replica did."""
        figures = self._cluster.figures
        if len(figures) > _MAX_TOLD:
            say(f"replicas  {len(figures)}, {sum(own.lost is not None for own in figures)} of them lost")
            figures = [own for own in figures if own.lost is not None or own.differs][:_MAX_TOLD]
        say("\n".join(aligned((own.name, own.words()) for own in figures)))

    def _note(self, note: str) -> None:
        say(note)
        if self._saves is not None:
            self._saves.event("note", text=note)


class RowsRun(ABC, Generic[Options]):
    """One call of such a command: its sweep, once it is known, and what runs its rows."""

    def __init__(self, process: WatchedProcess, options: Options, surroundings: Surroundings) -> None:
        self.process = process
        self.options = options
        self.surroundings = surroundings
        self.events = process.stream
        self.sweep: Sweep | None = None
        # How long rows ran.
        self.seconds = 0.0
        self.replicas: ReplicaRows | None = None
        self.session: Session | None = None
        self._progress: SweepProgress | None = None

    def carry_out(self) -> Exit:
        """Runs what is left, and shows what came of it. Raises UsageError, DataError and ModelError."""
        try:
            with last_words(self.last_words):
                self.run()
        except KeyboardInterrupt:
            self._say_interrupted()
            self.events.emit(RunEnded(status="interrupted"))
            return Exit.INTERRUPTED
        except (BudgetReached, ServerGone) as error:
            return self._ended_early(error)
        return self.report()

    @abstractmethod
    def run(self) -> None:
        """Makes the sweep, and runs it."""

    @abstractmethod
    def report(self) -> Exit:
        """Shows what came of the rows, all of which are there."""

    @abstractmethod
    def open_session(self) -> Session:
        """The session for all cells, opened once."""

    def settings(self) -> Settings:
        """The settings of the session, and of replicas."""
        return self.options

    @abstractmethod
    def resumption(self, more: str = "") -> str | None:
        """How to go on from the finished rows, `more` being needed for it; None where there are none."""

    def saves(self) -> RunFile | None:
        """The run whose events have what replicas did; None where they are of several runs."""
        return None

    def row_saved(self, row: FinishedRow) -> None:
        """Shows a row that has ended."""

    def rows_ended(self) -> None:
        """Called once the rows of a part have ended, and however else they end."""

    def drive(self, rows: Coroutine[Any, Any, None], *, wanted: bool = True) -> None:
        """Runs rows, with a bar where that is `wanted`, until they have ended or a signal comes."""
        assert self.sweep is not None
        self.progress.begin()
        start = time.monotonic()
        with self.process.progress.of_rows(self.sweep.total, self.sweep.done, wanted=wanted):
            try:
                run_until_interrupted(rows)
            finally:
                self.rows_ended()
        self.seconds += time.monotonic() - start

    def runner(self) -> RowRunner:
        """What runs rows: replicas where the options name a cluster, else the session."""
        assert self.sweep is not None
        self.tell_cells(self.progress.all())
        jobs = [run.job for run in self.sweep.runs]
        if self.options.cluster is None:
            session = self.open_session()
            for job in jobs:
                bind_grader(job.grader, session)
            started, calls = partial(self.row_at_work, runs=True), self.sweep.calls_of
            return LocalRunner(session, jobs, self.options.concurrency, calls=calls, started=started)
        if self.replicas is None:
            saves, at_work = self.saves(), self.row_at_work
            self.replicas = ReplicaRows(self.settings(), jobs, self.surroundings, self.events, saves, at_work)
        return self.replicas

    @property
    def progress(self) -> SweepProgress:
        """How far the sweep is, once it is known."""
        assert self.sweep is not None
        if self._progress is None:
            self._progress = SweepProgress(self.sweep, self.process.progress.worked)
        return self._progress

    def tell_cells(self, cells: Sequence[CellReached]) -> None:
        """Tells whoever watches how far cells are, where there may be several."""

    def row_at_work(self, row: NumberedRow, runs: bool) -> None:
        """Tells that a row runs from now on, or waits to run again."""
        self.tell_cells([self.progress.at_work(row, runs)])

    def rows_saved(self, rows: Sequence[FinishedRow]) -> None:
        """Shows rows that have ended."""
        self.tell_cells(self.progress.ended(rows))
        for row in rows:
            self.row_saved(row)
        self.process.progress.rows_done(len(rows), self.progress.left())

    @property
    def calls(self) -> Calls | None:
        """What this call took of servers; None where it asked none."""
        asked = self.replicas if self.replicas is not None else self.session
        return total_calls({} if asked is None else asked.calls)

    def say_calls(self) -> None:
        for name, text in call_facts(self.calls):
            say(f"{name}: {text}")

    def last_words(self) -> None:
        """What is said where the process is ended before it could end in good order."""
        self._say_interrupted()

    def _ended_early(self, error: BudgetReached | ServerGone) -> Exit:
        """Says why servers are not asked any more, and how to go on."""
        say(f"error: {error}: {self._finished()}")
        self.say_calls()
        if (how := self.resumption("more to spend" if isinstance(error, BudgetReached) else "")) is not None:
            say(f"help: {how}")
        self.events.emit(RunEnded(status="failed", error=str(error)))
        return Exit.BUDGET if isinstance(error, BudgetReached) else Exit.SERVER

    def _say_interrupted(self) -> None:
        say(f"interrupted: {self._finished()}")
        if (how := self.resumption()) is not None:
            say(f"help: {how}")

    def _finished(self) -> str:
        if self.sweep is None:
            return "no row was run"
        return f"{self.sweep.done:,} of {self.sweep.total:,} rows are finished"
