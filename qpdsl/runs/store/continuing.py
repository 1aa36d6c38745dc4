"""Going on from saved runs: the one to resume, rows to take over from others, and the runs of the cells of a sweep."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpdsl.errors import UsageError, shorten
from qpdsl.planner.values.value import Value, dumps, plain
from qpdsl.runs.data.input_row import InputData
from qpdsl.runs.grid import Cell
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import FinishedRow, Outcome, graded_anew
from qpdsl.runs.store.fingerprint import Fingerprint, changes, run_fingerprint
from qpdsl.runs.store.recording import Recording, is_of
from qpdsl.runs.store.run_file import RunFile, RunFileError
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RowRecord, RunInfo, RunRecord, grading_key, row_key, run_record
from qpdsl.session.settings import SessionSettings

if TYPE_CHECKING:
    from qpdsl.planner.plan.budget_policy import BudgetPolicy
    from qpdsl.planner.plan.logical import LogicalProgram

_HOW = "give what it was started with, or leave out `--resume` to begin a new run"


async def reuse(recording: Recording, folder: RunFolder, ids: Sequence[str] | None = None) -> Counter[str]:
    """Takes what other runs with an equal fingerprint have of the rows that are left, the newest runs first.

    Rows are equal where their arguments are; a row that failed runs again. Rows are graded anew where the grader, the
    reference or a field differs. `ids` are the runs to look at, newest first, by default all. Returns how many rows are
    from which run. Raises UsageError.
    """
    taken: Counter[str] = Counter()
    wanted: dict[str, list[int]] = {}
    for left in recording.left():
        wanted.setdefault(row_key(left.row), []).append(left.number)
    for id in reversed(folder.ids()) if ids is None else ids:
        if not wanted:
            break
        if id == recording.id:
            continue
        found: list[FinishedRow] = []
        sources: list[int] = []
        for saved in _rows_of(folder, id, recording.run.record.key):
            for number in wanted.pop(saved.key, ()) if saved.outcome.error is None else ():
                found.append(await _taken(recording, number, saved, id))
                sources.append(saved.number)
        if found:
            recording.add_all(_with_samples(folder, id, found, sources))
            taken[id] = len(found)
    return taken


def _rows_of(folder: RunFolder, id: str, key: str) -> list[RowRecord]:
    """The rows of a run, none where it is another program's or cannot be read."""
    try:
        with RunFile.reading(folder.file(id)) as run:
            return list(run.rows()) if run.record.key == key else []
    except RunFileError:
        return []


def _with_samples(folder: RunFolder, id: str, rows: list[FinishedRow], numbers: list[int]) -> list[FinishedRow]:
    """The rows with the samples that a run saved of them, under these numbers. Raises RunFileError."""
    with RunFile.reading(folder.file(id)) as run:
        if not run.samples_size()[0]:
            return rows
        found = zip(rows, map(run.samples, numbers), strict=True)
        return [replace(row, outcome=replace(row.outcome, samples=samples)) for row, samples in found]


async def _taken(recording: Recording, number: int, saved: RowRecord, id: str) -> FinishedRow:
    row = recording.data.rows[number]
    outcome = replace(saved.outcome, id=row.id)
    if saved.graded_by != grading_key(row, recording.grader):
        outcome = await graded_anew(outcome, row, recording.grader)
    return FinishedRow(number, outcome, reused=saved.reused or id)


def unfinished(folder: RunFolder, record: RunRecord, data: InputData) -> RunFile:
    """The newest unfinished run that `record` would repeat, open for writing.

    Its rows may be fewer than those of `data`, but one of them must be there. Raises UsageError where there is none,
    with what the nearest one differs in, and where another process writes the only one.
    """
    found = list(_unfinished(folder, record.program, record.sweep))
    same = [info for info in found if info.record.key == record.key]
    # One that has rows comes before those that ended before their first.
    fitting = sorted((info for info in same if _shares_rows(folder, info, data)), key=lambda info: not info.totals.done)
    for info in fitting:
        if not info.writing:
            return RunFile.writing(folder.file(info.id))
    if fitting:
        raise UsageError(f"another process is writing run `{fitting[0].id}` now", "wait for it or stop it")
    if same:
        raise UsageError(
            f"no row of the unfinished run `{same[0].id}` is in the input `{data.name}`",
            "give the input that it was started with, or leave out `--resume` to begin a new run",
        )
    raise _nothing_to_resume(folder, record, found)


def check_unfinished(folder: RunFolder, program: str, known: Fingerprint, parameters: Mapping[str, Any]) -> None:
    """Raises UsageError where each unfinished run of a program differs in what is `known` before its models are.

    `known` are parts of the fingerprint, `parameters` the values as plain data.
    """
    found = list(_unfinished(folder, program, None))
    differ = [(info, _changes(info, {**info.record.fingerprint, **known}, parameters)) for info in found]
    if found and all(changed for _, changed in differ):
        raise _changed(differ)


def others_like(folder: RunFolder, record: RunRecord) -> list[RunInfo]:
    """The saved runs that `record` would repeat on the same input, newest first."""
    found = [info for info in folder.infos() if info.record.key == record.key]
    return [info for info in reversed(found) if info.record.input_digest == record.input_digest]


def newest(folder: RunFolder, record: RunRecord) -> RunInfo | None:
    """The newest saved run that `record` would repeat, finished or not, of the same sweep; None where there is none."""
    for info in reversed(list(folder.infos())):
        if info.record.key == record.key and info.record.sweep == record.sweep:
            return info
    return None


def probably_resumed(folder: RunFolder, program: str, seed: int, values: Mapping[str, Value]) -> RunRecord | None:
    """The record of the run that would be resumed, as far as that can be told before there is a plan."""
    parameters = {name: plain(value) for name, value in values.items()}
    for info in _unfinished(folder, program, None):
        if info.record.seed == seed and info.record.parameters == parameters and not info.writing:
            return info.record
    return None


def policy_of(record: RunRecord, program: LogicalProgram) -> BudgetPolicy | None:
    """What a run decided by, where a program has its budget and its ways; else None."""
    from qpdsl.planner.plan.budget_policy import BudgetPolicy
    from qpdsl.planner.strategies.written_strategies import reached_strategies, strategies_of

    if record.policy is None or program.budget is None:
        return None
    policy = BudgetPolicy.from_json(record.policy)
    same = policy.is_for(program.budget)
    return policy if same and {*reached_strategies(policy)} <= {*strategies_of(program)} else None


def writer_of(folder: RunFolder, output: Path, but: str = "") -> str | None:
    """The id of another run than `but` that a process writes now, and that will write `output` when it ends."""
    for id in folder.locked_ids():
        try:
            with RunFile.reading(folder.file(id)) as run:
                if run.record.output == str(output) and id != but:
                    return id
        except RunFileError:
            continue
    return None


def _unfinished(folder: RunFolder, program: str, sweep: str | None) -> Iterator[RunInfo]:
    """The unfinished runs of a program, newest first."""
    for info in reversed(list(folder.infos())):
        if info.status != "finished" and (info.record.program, info.record.sweep) == (program, sweep):
            yield info


def _shares_rows(folder: RunFolder, info: RunInfo, data: InputData) -> bool:
    """Whether a row of a run is one of these, or its data is this."""
    if info.record.input_digest == data.digest:
        return True
    with RunFile.reading(folder.file(info.id)) as run:
        return any(row.number < len(data.rows) and is_of(row, data.rows[row.number]) for row in run.rows())


def _changes(info: RunInfo, fingerprint: Fingerprint, parameters: Mapping[str, Any]) -> list[str]:
    """In words, what a run has otherwise than it is now."""
    old, new = ({name: dumps(value) for name, value in own.items()} for own in (info.record.parameters, parameters))
    arguments = [
        f"`{name}` was {shorten(old.get(name, 'not set'))}, is {shorten(new.get(name, 'not set'))}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]
    return changes(info.record.fingerprint, fingerprint, arguments)


def _changed(found: Sequence[tuple[RunInfo, list[str]]]) -> UsageError:
    """What is said where all these runs differ: of the nearest one in what."""
    near, changed = min(found, key=lambda one: len(one[1]))
    rows = f"{near.totals.done} of {near.record.rows} rows"
    return UsageError(f"cannot resume the run `{near.id}` ({rows}); changed since it began: {', '.join(changed)}", _HOW)


def _nothing_to_resume(folder: RunFolder, record: RunRecord, found: list[RunInfo]) -> UsageError:
    if found:
        return _changed([(info, _changes(info, record.fingerprint, record.parameters)) for info in found])
    done = newest(folder, record)
    if done is not None:
        return UsageError(
            f"the run `{done.id}` is finished, and no other of this program is unfinished",
            "leave out `--resume` to run it again; with `--reuse` its rows are taken over",
        )
    return UsageError(
        f"there is no unfinished run of `{record.program}` in `{folder.path}`", "leave out `--resume` to begin one"
    )


@dataclass(frozen=True, slots=True)
class CellRun:
    """One run of a sweep, before it is opened: a cell with a seed, its rows, and the record of a run of them."""

    cell: Cell
    job: Job
    data: InputData
    record: RunRecord

    @classmethod
    def of(
        cls,
        cell: Cell,
        job: Job,
        data: InputData,
        values: Mapping[str, Value],
        settings: SessionSettings,
        *,
        models: Mapping[str, str],
        python: str,
        **more: Any,
    ) -> CellRun:
        """The run of a job over its rows; see `run_fingerprint`. `more` is what `run_record` takes besides."""
        fingerprint = run_fingerprint(job, values, settings, models=models, python=python)
        return cls(cell, job, data, run_record(job, data, values, fingerprint, choice=cell.choice, **more))

    def begin(self, folder: RunFolder) -> Recording:
        """A new run in a folder. Raises UsageError where it cannot be written."""
        return Recording.begin(folder, self.record, self.data, self.job.grader)

    def resume(self, file: RunFile) -> Recording:
        """Goes on with a saved run: see `Recording.resume`. The file is closed where that fails."""
        try:
            return asyncio.run(Recording.resume(file, self.record, self.data, self.job.grader))
        except BaseException:
            file.close()
            raise


@dataclass(frozen=True)
class SavedCells:
    """The saved runs of sweeps in a folder, newest first, by the key of what their results depend on."""

    folder: RunFolder
    ids: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: RunFolder) -> SavedCells:
        """Those of a folder, which is gone through once."""
        ids: dict[str, list[str]] = {}
        for info in folder.infos():
            if info.record.sweep is not None:
                ids.setdefault(info.record.key, []).insert(0, info.id)
        return cls(folder, ids)

    def whole(self, run: CellRun) -> tuple[str, dict[int, Outcome]] | None:
        """The id and the outcomes of the newest run that has every row of a cell, graded as it would be now.

        None where there is none. It may have more rows, of a sweep over more of the same input.
        """
        for id in self.ids.get(run.record.key, ()):
            saved = {row.number: row for row in _rows_of(self.folder, id, run.record.key)}
            outcomes = {
                number: own.outcome
                for number, row in enumerate(run.data.rows)
                if (own := saved.get(number)) is not None
                and is_of(own, row)
                and own.graded_by == grading_key(row, run.job.grader)
            }
            if len(outcomes) == len(run.data.rows):
                return id, outcomes
        return None

    def open(self, run: CellRun) -> Recording:
        """The run to go on with: the newest that loses no row by it, else a new one.

        A new one takes over what others have of its rows. Raises UsageError, also where another process writes the
        one to go on with.
        """
        known = self.ids.get(run.record.key, [])
        for id in known:
            if self._loses_nothing(id, run):
                return run.resume(RunFile.writing(self.folder.file(id)))
        recording = run.begin(self.folder)
        try:
            asyncio.run(reuse(recording, self.folder, known))
        except BaseException:
            recording.close()
            raise
        return recording

    def _loses_nothing(self, id: str, run: CellRun) -> bool:
        """Whether all rows of a saved run, of which there are some, are rows of the cell."""
        rows, saved = run.data.rows, _rows_of(self.folder, id, run.record.key)
        return bool(saved) and all(row.number < len(rows) and is_of(row, rows[row.number]) for row in saved)
