"""The kept runs of sweeps: for each cell and seed the run that has its rows, so that nothing runs twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qpdsl.dataset.job import Job
from qpdsl.evaluation.grid import Cell
from qpdsl.inputs.input_row import InputData, InputRow
from qpdsl.run_store.recording import Recording, is_of
from qpdsl.run_store.reuse import reuse
from qpdsl.run_store.run_file import RunFile, RunFileError
from qpdsl.run_store.run_folder import RunFolder
from qpdsl.run_store.run_record import RowRecord, RunRecord, grading_key


@dataclass(frozen=True, slots=True)
class CellRun:
    """One run of a sweep, before it is opened: a cell with a seed, its rows, and the record of a run of them."""

    cell: Cell
    job: Job
    data: InputData
    record: RunRecord


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A kept run of a cell with all its rows, by their numbers."""

    id: str
    rows: Mapping[int, RowRecord]


@dataclass(frozen=True)
class KeptCells:
    """The runs of sweeps in a folder, newest first, by the key of what their results depend on."""

    folder: RunFolder
    ids: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: RunFolder) -> KeptCells:
        """Those of a folder, which is gone through once."""
        ids: dict[str, list[str]] = {}
        for info in folder.infos():
            if info.record.sweep is not None:
                ids.setdefault(info.record.key, []).insert(0, info.id)
        return cls(folder, ids)

    def whole(self, run: CellRun) -> WholeRun | None:
        """The newest run that has every row of a cell, graded as it would be now; None where there is none.

        It may have more rows, of a sweep over more of the same input.
        """
        for id in self.ids.get(run.record.key, ()):
            kept = {row.number: row for row in self._rows(id)}
            found = {
                number: kept[number] for number, row in enumerate(run.data.rows) if _is_done(kept.get(number), row, run)
            }
            if len(found) == len(run.data.rows):
                return WholeRun(id, found)
        return None

    async def open(self, run: CellRun) -> Recording:
        """The run to go on with: the newest that loses no row by it, else a new one.

        A new one takes over what others have of its rows. Raises UsageError, also where another process writes the
        one to go on with.
        """
        known = self.ids.get(run.record.key, [])
        for id in known:
            if self._loses_nothing(id, run):
                file = RunFile.writing(self.folder.file(id))
                try:
                    return await Recording.resume(file, run.record, run.data, run.job.grader)
                except BaseException:
                    file.close()
                    raise
        recording = Recording.begin(self.folder, run.record, run.data, run.job.grader)
        try:
            await reuse(recording, self.folder, known)
        except BaseException:
            recording.close()
            raise
        return recording

    def _loses_nothing(self, id: str, run: CellRun) -> bool:
        """Whether all rows of a kept run, of which there are some, are rows of the cell."""
        rows = run.data.rows
        kept = self._rows(id)
        return bool(kept) and all(row.number < len(rows) and is_of(row, rows[row.number]) for row in kept)

    def _rows(self, id: str) -> list[RowRecord]:
        """The rows of a kept run; none where it cannot be read."""
        try:
            with RunFile.reading(self.folder.file(id)) as file:
                return list(file.rows())
        except RunFileError:
            return []


def _is_done(kept: RowRecord | None, row: InputRow, run: CellRun) -> bool:
    """Whether a kept row is this one of the cell, graded as it would be now."""
    return kept is not None and is_of(kept, row) and kept.graded_by == grading_key(row, run.job.grader)
