"""Running a sweep: the rows that are left of all its runs, side by side, each saved as it ends.

Cells share what they compute of a problem: the KV of its prompt, scores, and samples, since those of n=4 are the first
four of n=16. What is shared must stay in memory until the last cell has used it. So a sweep goes through the problems
in blocks, and through all cells within a block: memory is bounded by the block, however many rows there are. The widest
cell goes first, as all others then find their samples drawn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from qpdsl.errors import UsageError
from qpdsl.executor.runtime.instance.tools import CallStore
from qpdsl.runs.data.input_row import NumberedRow
from qpdsl.runs.row_outcome import FinishedRow, Outcome
from qpdsl.runs.runner import RowRunner
from qpdsl.runs.start_order import in_start_order
from qpdsl.runs.store.continuing import CellRun
from qpdsl.runs.store.recording import Recording
from qpdsl.runs.store.run_record import Status
from qpdsl.runs.summary import Summary

T = TypeVar("T")
# Runs that are written at once: each is a few open files.
AT_ONCE = 64
# Problems of a block. Rows of several blocks and cells run side by side all the same.
BLOCK = 16


@dataclass
class Sweep:
    """The runs of a sweep, and what came of them by now. A run of one program over one input is a sweep of one cell.

    `open` opens a run for this process to write, with the rows that it has. `whole` finds a saved run that has all
    rows: its id, and their outcomes. `saved` is called with rows that have ended, once they are saved. `finish` is
    called with the place of a run once its rows are there, and returns its summary: the run is finished when it
    returns. Without a `finish` a run is finished with its last row.

    `outcomes` has the rows of each run that was begun, by their numbers, and `ids` its id; both by the run's place in
    `runs`, as `recordings` has those that are open. `ended` rows did so in this process; `sampled` counts their sampled
    tokens, and `shared` those of them that another cell, or another row, had drawn.
    """

    runs: Sequence[CellRun]
    open: Callable[[CellRun], Recording]
    whole: Callable[[CellRun], tuple[str, Mapping[int, Outcome]] | None] = lambda run: None
    saved: Callable[[Sequence[FinishedRow]], None] = lambda rows: None
    finish: Callable[[int], Mapping[str, Any]] | None = None
    outcomes: dict[int, Mapping[int, Outcome]] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    recordings: dict[int, Recording] = field(default_factory=dict)
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

    def run(self, runner: Callable[[], RowRunner], drive: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Runs what is left of all runs, `AT_ONCE` at a time; however it ends, each row that ended is saved.

        `runner` is called where rows are left, and `drive` runs what it starts. Raises what `open` and `finish` raise,
        what a runner raises, and UsageError where rows cannot be saved.
        """
        left = self._look()
        for first in range(0, len(left), AT_ONCE):
            with self._opened(left[first : first + AT_ONCE]):
                if rows := list(self._rows()):
                    drive(runner().run(rows, self._save))

    def calls_of(self, place: int) -> CallStore:
        """What keeps the calls of tools of an open run."""
        return self.recordings[place].run

    def _look(self) -> list[int]:
        """Finds what earlier sweeps have finished. Returns the places of the runs that are left."""
        for place, run in enumerate(self.runs):
            if (whole := self.whole(run)) is not None:
                self.ids[place], self.outcomes[place] = whole
        return [place for place in range(len(self.runs)) if place not in self.ids]

    @contextlib.contextmanager
    def _opened(self, places: Sequence[int]) -> Iterator[None]:
        """Opens runs, and ends them as the block ends."""
        with contextlib.ExitStack() as stack:
            self.recordings = {}
            try:
                for place in places:
                    own = self.recordings[place] = stack.enter_context(self.open(self.runs[place]))
                    self.outcomes[place], self.ids[place] = own.outcomes, own.id
                yield
                for place, own in self.recordings.items():
                    own.end("finished", self._summary(own) if self.finish is None else self.finish(place))
            except BaseException as error:
                self._end_early("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
                raise

    def _end_early(self, status: Status) -> None:
        for own in self.recordings.values():
            is_finished = self.finish is None and not own.left()
            # Where that cannot be written, the run is one that was stopped.
            with contextlib.suppress(UsageError):
                own.end("finished" if is_finished else status, None if self.finish else self._summary(own))

    def _summary(self, recording: Recording) -> dict[str, Any]:
        outcomes = [recording.outcomes[number] for number in sorted(recording.outcomes)]
        return Summary(outcomes, 0.0, 0).to_json(timing=False)

    def _rows(self) -> Iterator[NumberedRow]:
        """The rows that are left of the runs that are open, in the order of `row_order`, then of `in_start_order`."""
        widest_first = sorted(self.recordings, key=lambda place: self.runs[place].job.plan.in_flight or 1)
        left = [(place, {row.number for row in self.recordings[place].left()}) for place in widest_first]
        rows = [NumberedRow(number, self.runs[place].data.rows[number], place) for place, number in row_order(left)]
        yield from in_start_order(rows, lambda one: self.runs[one.run].job.plan)

    def _save(self, ended: Sequence[FinishedRow]) -> None:
        by_run: dict[int, list[FinishedRow]] = {}
        for row in ended:
            by_run.setdefault(row.run, []).append(row)
        for place, rows in by_run.items():
            self.recordings[place].add_all(rows)
            self.ended += len(rows)
            self.sampled += sum(row.outcome.tokens_out for row in rows)
            self.shared += sum(row.outcome.saved_tokens for row in rows)
            self.saved(rows)


def row_order(cells: Sequence[tuple[T, Collection[int]]], block: int = BLOCK) -> Iterator[tuple[T, int]]:
    """Each cell with the number of each row that is left to it, block by block, the cells of a block in this order.

    `cells` are pairs of a cell and the numbers of the rows that are left to it.
    """
    last = max((max(left, default=-1) for _, left in cells), default=-1)
    for start in range(0, last + 1, block):
        for cell, left in cells:
            yield from ((cell, number) for number in range(start, start + block) if number in left)
