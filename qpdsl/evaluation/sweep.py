"""Running a sweep: all runs of all cells over one session, side by side, each row kept as it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from qpdsl.dataset.job import Job, run_tasks
from qpdsl.dataset.row_outcome import Outcome
from qpdsl.dataset.row_runner import FinishedRow
from qpdsl.dataset.summary import Summary
from qpdsl.evaluation.kept_cells import CellRun, KeptCells
from qpdsl.evaluation.row_order import row_order
from qpdsl.inputs.input_row import InputRow
from qpdsl.run_store.recording import Recording
from qpdsl.run_store.run_record import Status

if TYPE_CHECKING:
    from qpdsl.session import Session

# Runs that are written at once: each is a few open files.
AT_ONCE = 64


# What is called with rows that have ended, each once and with the place of its run.
KeepCellRows = Callable[[Sequence[tuple[int, FinishedRow]]], None]


class CellRunner(Protocol):
    """Runs rows of several runs of a sweep."""

    async def run(self, rows: Iterable[tuple[int, int, InputRow]], done: KeepCellRows) -> None:
        """Runs rows, each with the place of its run and its number, and calls `done` with them as they end.

        It does so as a `RowRunner` does. Raises ServerGone, BudgetReached and ModelError.
        """


@dataclass(frozen=True)
class SessionCells:
    """Runs rows over one session, in which the models of all jobs are loaded; `jobs` are by the place of the run.

    `tasks_run` is `run_tasks`, or what runs tasks likewise where something else keeps the engine stepping.
    """

    session: Session
    jobs: Sequence[Job]
    concurrency: int | None = None
    tasks_run: Callable[..., Coroutine[Any, Any, None]] = run_tasks

    async def run(self, rows: Iterable[tuple[int, int, InputRow]], done: KeepCellRows) -> None:
        def ended(key: tuple[int, int], outcome: Outcome) -> None:
            place, number = key
            done([(place, FinishedRow(number, outcome))])

        tasks = (((place, number), self.jobs[place], row) for place, number, row in rows)
        await self.tasks_run(self.session, tasks, self.concurrency, ended)


@dataclass
class Sweep:
    """The runs of a sweep, and what came of them by now.

    `outcomes` has the rows of each run that was begun, by their numbers, and `ids` its id; both by the run's place in
    `runs`. `ended` rows did so in this process; `sampled` counts their sampled tokens, and `shared` those of them that
    another cell, or another row, had drawn.
    """

    runs: Sequence[CellRun]
    kept: KeptCells
    outcomes: dict[int, Mapping[int, Outcome]] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    ended: int = 0
    sampled: int = 0
    shared: int = 0

    @property
    def total(self) -> int:
        """How many rows there are, of all runs."""
        return sum(len(run.data.rows) for run in self.runs)

    @property
    def done(self) -> int:
        """How many of them are finished, as far as the runs were looked at."""
        return sum(map(len, self.outcomes.values()))

    def look(self) -> list[int]:
        """Finds what earlier sweeps have finished. Returns the places of the runs that are left."""
        for number, run in enumerate(self.runs):
            whole = None if number in self.outcomes else self.kept.whole(run)
            if whole is not None:
                self.outcomes[number] = {row: kept.outcome for row, kept in sorted(whole.rows.items())}
                self.ids[number] = whole.id
        return [number for number in range(len(self.runs)) if number not in self.ids]

    @contextlib.contextmanager
    def opened(self, numbers: Sequence[int]) -> Iterator[OpenRuns]:
        """Some of the runs, to go on with, at most `AT_ONCE`; however the block ends, each row that ended is kept.

        Raises UsageError where one cannot be written.
        """
        with contextlib.ExitStack() as stack:
            found: dict[int, Recording] = {}
            for number in numbers:
                found[number] = stack.enter_context(asyncio.run(self.kept.open(self.runs[number])))
                self.outcomes[number], self.ids[number] = found[number].outcomes, found[number].id
            runs = OpenRuns(self, found)
            try:
                yield runs
            except BaseException as error:
                runs.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
                raise
            runs.end("finished")


@dataclass
class OpenRuns:
    """Runs of a sweep that this process writes, by their places."""

    sweep: Sweep
    recordings: Mapping[int, Recording]

    @property
    def left(self) -> int:
        """How many rows are not finished."""
        return sum(len(recording.left()) for recording in self.recordings.values())

    async def run(self, runner: CellRunner, told: Callable[[], None] = lambda: None) -> None:
        """Runs what is left. `told` is called for each row that ends."""

        def done(ended: Sequence[tuple[int, FinishedRow]]) -> None:
            by_run: dict[int, list[FinishedRow]] = {}
            for place, row in ended:
                by_run.setdefault(place, []).append(row)
            for place, rows in by_run.items():
                self.recordings[place].add_all(rows)
                for row in rows:
                    self.sweep.ended += 1
                    self.sweep.sampled += row.outcome.tokens_out
                    self.sweep.shared += row.outcome.saved_tokens
                    told()

        await runner.run(self._rows(), done)

    def _rows(self) -> Iterator[tuple[int, int, InputRow]]:
        """The rows that are left, with the places of their runs and their numbers, in the order of `row_order`."""
        runs = self.sweep.runs
        widest_first = sorted(self.recordings, key=lambda number: runs[number].job.plan.in_flight or 1)
        left = [(number, {row for row, _ in self.recordings[number].left()}) for number in widest_first]
        for number, row in row_order(left):
            yield number, row, runs[number].data.rows[row]

    def end(self, status: Status) -> None:
        """Says how the runs ended: a run of which no row is left has finished, whatever ended the others."""
        for recording in self.recordings.values():
            outcomes = [recording.outcomes[number] for number in sorted(recording.outcomes)]
            summary = Summary(outcomes, 0.0, 0).to_json(timing=False)
            recording.end(status if recording.left() else "finished", summary)
