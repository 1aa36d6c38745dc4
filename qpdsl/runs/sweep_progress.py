"""How far the cells of a sweep are, and how long it still takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qpdsl.executor.events.events import CellReached
from qpdsl.runs.data.input_row import NumberedRow
from qpdsl.runs.row_outcome import FinishedRow, Outcome
from qpdsl.runs.sweep import Sweep


@dataclass(slots=True)
class CellProgress:
    """One cell: `done` of its rows are there, `ended` of them did so in this process, and `drawn` counts what that
    took: the sampled tokens that no other cell had drawn. `running` are the places of those at work, by run and row.
    """

    name: str
    rows: int
    done: int = 0
    running: set[tuple[int, int]] = field(default_factory=set)
    failed: int = 0
    right: int = 0
    judged: int = 0
    sampled: int = 0
    shared: int = 0
    ended: int = 0
    drawn: int = 0

    def add(self, outcome: Outcome) -> None:
        """Counts a row that is there."""
        self.done += 1
        self.failed += outcome.failure is not None
        self.judged += outcome.correct is not None
        self.right += outcome.correct is True
        self.sampled += outcome.tokens_out
        self.shared += outcome.saved_tokens

    def ended_now(self, row: FinishedRow) -> None:
        self.add(row.outcome)
        self.running.discard((row.run, row.number))
        self.ended += 1
        self.drawn += row.outcome.tokens_out - row.outcome.saved_tokens


class SweepProgress:
    """The progress of a sweep. A cell is one for all its seeds.

    Time goes by what is drawn: a row whose samples are there already takes none, and tells nothing of those that are
    left to the widest cell. `worked` is a clock, in seconds, that stands while no row can go on.
    """

    def __init__(self, sweep: Sweep, worked: Callable[[], float] = time.monotonic) -> None:
        self._sweep = sweep
        self._worked = worked
        self._cells: dict[str, CellProgress] = {}
        self._known: set[int] = set()
        self._begun: float | None = None
        for run in sweep.runs:
            cell = self._cells.setdefault(run.cell.name, CellProgress(run.cell.name, 0))
            cell.rows += len(run.data.rows)

    def begin(self) -> None:
        """Rows run from now on."""
        self._begun = self._worked() if self._begun is None else self._begun

    def all(self) -> list[CellReached]:
        """Every cell, with the rows that it is known to have from before."""
        for place, outcomes in self._sweep.outcomes.items():
            if place not in self._known:
                self._known.add(place)
                for outcome in outcomes.values():
                    self._of(place).add(outcome)
        return [self._reached(cell) for cell in self._cells.values()]

    def at_work(self, row: NumberedRow, runs: bool) -> CellReached:
        """Counts a row that runs from now on, or waits to run again."""
        cell = self._of(row.run)
        (cell.running.add if runs else cell.running.discard)((row.run, row.number))
        return self._reached(cell)

    def ended(self, rows: Sequence[FinishedRow]) -> list[CellReached]:
        """Counts rows that have ended; how far their cells are with that."""
        for row in rows:
            self._of(row.run).ended_now(row)
        names = dict.fromkeys(self._of(row.run).name for row in rows)
        return [self._reached(self._cells[name]) for name in names]

    def left(self) -> float | None:
        """About how many seconds it still takes; None where no row has ended yet."""
        cells = self._cells.values()
        ended = sum(cell.ended for cell in cells)
        if self._begun is None or not ended:
            return None
        # One for the row itself, so that rows that draw nothing count too.
        took = sum(cell.drawn for cell in cells) + ended
        mean = took / ended
        ahead = sum(
            (cell.rows - cell.done) * ((cell.drawn + cell.ended) / cell.ended if cell.ended else mean) for cell in cells
        )
        return ahead * (self._worked() - self._begun) / took

    def _of(self, place: int) -> CellProgress:
        return self._cells[self._sweep.runs[place].cell.name]

    def _reached(self, cell: CellProgress) -> CellReached:
        return CellReached(
            at=time.monotonic(),
            cell=cell.name,
            rows=cell.rows,
            done=cell.done,
            running=len(cell.running),
            failed=cell.failed,
            right=cell.right,
            judged=cell.judged,
            sampled_tokens=cell.sampled,
            shared_tokens=cell.shared,
            left=self.left(),
        )
