"""The rows of a run: those that are saved, and those that are left to run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from qpdsl.errors import shorten
from qpdsl.planner.values.value import plain
from qpdsl.runs.data.input_row import InputData, InputRow, NumberedRow
from qpdsl.runs.graders.grader import Grader
from qpdsl.runs.row_outcome import FinishedRow, Outcome, graded_anew
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RowRecord, RunRecord, Status, asked, grading_key, row_key, short_fields

_MAX_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """What a run that goes on has: how many rows are `done`, and the ids of the others that it had.

    Of `damaged` only the numbers are known. `changed` rows of the input have other arguments now, `gone` ones are in it
    no more, `faulty` ones failed by a fault of qpdsl: all are dropped. `regraded` rows are done, with a new grade.
    """

    done: int = 0
    damaged: tuple[int, ...] = ()
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    faulty: tuple[str, ...] = ()
    regraded: int = 0

    def notes(self, id: str, rows: int) -> list[str]:
        """In words, a line each, what the run `id` has of an input of so many rows."""
        lines = [f"going on with run `{id}`: {self.done} of {rows} rows are there"]
        if self.regraded:
            lines.append(f"note: {self.regraded} of them are graded anew")
        if self.damaged:
            numbers = _listed([str(number + 1) for number in self.damaged])
            lines.append(f"warning: damaged in run `{id}`, and run again: row{'s' * (len(self.damaged) > 1)} {numbers}")
        if self.changed:
            lines.append(f"note: rows that have other arguments now run again: {_listed(self.changed)}")
        if self.faulty:
            lines.append(f"note: rows that failed by an internal error run again: {_listed(self.faulty)}")
        if self.gone:
            lines.append(f"note: rows that are not in the input any more are dropped: {_listed(self.gone)}")
        return lines


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(f"`{shorten(name, 24)}`" for name in names[:_MAX_LISTED]) + more


class Recording:
    """A run that this process writes, with the outcomes of its finished rows by number. A context manager.

    `continued` is what was there when it went on. A run that this process began is removed again when it is closed
    without a row, unless it is one of its own whose rows were begun.
    """

    def __init__(self, run: RunFile, data: InputData, grader: Grader, continued: Continued | None = None) -> None:
        self.run = run
        self.data = data
        self.grader = grader
        self.continued = continued or Continued()
        self.outcomes: dict[int, Outcome] = {}
        self._is_new, self._ended = continued is None, False

    @classmethod
    def begin(cls, folder: RunFolder, record: RunRecord, data: InputData, grader: Grader) -> Self:
        """A new run. Raises UsageError where it cannot be written."""
        return cls(folder.create(record), data, grader)

    @classmethod
    async def resume(cls, run: RunFile, record: RunRecord, data: InputData, grader: Grader) -> Self:
        """Goes on with a run that is open for writing, whose fingerprint is that of `record`.

        A row is taken over where number, id and arguments are those of the input, and graded anew where it would be
        graded otherwise now. Other rows are dropped, to be run again. Raises UsageError.
        """
        believed, continued = await _believed(run, data, grader)
        if continued.damaged or continued.changed or continued.gone or continued.faulty or continued.regraded:
            run.keep_only(believed.values())
        run.revise(replace(record, started=run.record.started, policy=run.record.policy))
        run.event("resumed", done=continued.done, changed=list(continued.changed), gone=list(continued.gone))
        made = cls(run, data, grader, continued)
        made.outcomes = {number: row.outcome for number, row in believed.items()}
        return made

    @property
    def id(self) -> str:
        return self.run.id

    def left(self) -> list[NumberedRow]:
        """The rows that are not finished, in the order of the input."""
        rows = enumerate(self.data.rows)
        return [NumberedRow(number, row) for number, row in rows if number not in self.outcomes]

    def add(self, number: int, outcome: Outcome) -> None:
        """Saves the outcome of one row: see `add_all`."""
        self.add_all([FinishedRow(number, outcome)])

    def add_all(self, rows: Sequence[FinishedRow]) -> None:
        """Saves what came of rows, all or none: when this returns, nothing undoes it. Raises UsageError."""
        self.run.add(*(_row_record(row, self.data.rows[row.number], self.grader) for row in rows))
        self.outcomes.update((row.number, _without_samples(row.outcome)) for row in rows)

    def end(self, status: Status, summary: Mapping[str, Any] | None = None) -> None:
        """Says how the run ended, and what it came to. Raises UsageError."""
        self._ended = True
        self.run.end(status, summary)

    @property
    def stays(self) -> bool:
        """Whether the run is there once it is closed, for one that goes on with it."""
        return bool(self.outcomes) or not self._is_new or (self._ended and self.run.record.sweep is None)

    def close(self) -> None:
        """Ends the lock."""
        if self.stays:
            self.run.close()
        else:
            self.run.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _row_record(finished: FinishedRow, row: InputRow, grader: Grader) -> RowRecord:
    return RowRecord(
        number=finished.number,
        key=row_key(row),
        outcome=finished.outcome,
        asked=asked(row),
        reference=plain(row.reference),
        fields=short_fields(row),
        graded_by=grading_key(row, grader) if finished.outcome.grader_error is None else "",
        reused=finished.reused,
        replica=finished.replica,
        finished=time.time(),
    )


async def _believed(run: RunFile, data: InputData, grader: Grader) -> tuple[dict[int, RowRecord], Continued]:
    """The rows of a run that are done, by number, and what became of all that it had."""
    believed: dict[int, RowRecord] = {}
    damaged: list[int] = []
    changed: list[str] = []
    gone: list[str] = []
    faulty: list[str] = []
    regraded = 0
    for number, kept in run.checked_rows():
        if kept is None:
            damaged.append(number)
        elif not 0 <= number < len(data.rows):
            gone.append(kept.outcome.id)
        elif not is_of(kept, data.rows[number]):
            changed.append(kept.outcome.id)
        elif kept.outcome.faulty:
            faulty.append(kept.outcome.id)
        elif kept.graded_by == grading_key(data.rows[number], grader):
            believed[number] = kept
        else:
            row = data.rows[number]
            outcome = await graded_anew(kept.outcome, row, grader)
            anew = _row_record(FinishedRow(number, outcome, kept.replica, kept.reused), row, grader)
            believed[number] = replace(anew, finished=kept.finished)
            regraded += 1
    return believed, Continued(
        done=len(believed),
        damaged=tuple(damaged),
        changed=tuple(changed),
        gone=tuple(gone),
        faulty=tuple(faulty),
        regraded=regraded,
    )


def is_of(kept: RowRecord, row: InputRow) -> bool:
    """Whether a saved row is this one of the input: the same id, the same arguments."""
    return kept.outcome.id == row.id and kept.key == row_key(row)


def _without_samples(outcome: Outcome) -> Outcome:
    return outcome if outcome.samples is None else replace(outcome, samples=None)
