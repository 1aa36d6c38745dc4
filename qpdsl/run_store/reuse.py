"""Rows that an earlier run has computed: taken over by a run with the same fingerprint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from qpdsl.dataset.row_outcome import graded_anew
from qpdsl.dataset.row_runner import FinishedRow
from qpdsl.run_store.recording import Recording
from qpdsl.run_store.run_file import RunFile, RunFileError
from qpdsl.run_store.run_folder import RunFolder
from qpdsl.run_store.run_record import RowRecord, grading_key, row_key


async def reuse(recording: Recording, folder: RunFolder, ids: Sequence[str] | None = None) -> Counter[str]:
    """Takes what other runs with an equal fingerprint have of the rows that are left, the newest runs first.

    Rows are equal where their arguments are; a row that failed runs again. Rows are graded anew where the grader, the
    reference or a field differs. `ids` are the runs to look at, newest first, by default all. Returns how many rows are
    from which run. Raises UsageError.
    """
    taken: Counter[str] = Counter()
    wanted = {row_key(row): [] for _, row in recording.left()}  # type: dict[str, list[int]]
    for number, row in recording.left():
        wanted[row_key(row)].append(number)
    for id in reversed(folder.ids()) if ids is None else ids:
        if not wanted:
            break
        if id == recording.id:
            continue
        found: list[FinishedRow] = []
        for kept in _rows_of(folder, id, recording.run.record.key):
            for number in wanted.pop(kept.key, ()) if kept.outcome.error is None else ():
                found.append(await _taken(recording, number, kept, id))
        if found:
            recording.add_all(found)
            taken[id] = len(found)
    return taken


def _rows_of(folder: RunFolder, id: str, key: str) -> list[RowRecord]:
    """The rows of a run, none where it is another program's or cannot be read."""
    try:
        with RunFile.reading(folder.file(id)) as run:
            return list(run.rows()) if run.record.key == key else []
    except RunFileError:
        return []


async def _taken(recording: Recording, number: int, kept: RowRecord, id: str) -> FinishedRow:
    row = recording.data.rows[number]
    outcome = replace(kept.outcome, id=row.id)
    if kept.graded_by != grading_key(row, recording.grader):
        outcome = await graded_anew(outcome, row, recording.grader)
    return FinishedRow(number, outcome, reused=kept.reused or id)
