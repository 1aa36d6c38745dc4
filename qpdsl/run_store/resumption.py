"""Finding the run to go on with: the newest unfinished one whose results depend on the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from qpdsl.errors import UsageError
from qpdsl.inputs.input_row import InputData
from qpdsl.planner.values.json_values import plain
from qpdsl.planner.values.value import Value
from qpdsl.run_store.fingerprint import changes
from qpdsl.run_store.recording import is_of
from qpdsl.run_store.run_file import RunFile, RunFileError
from qpdsl.run_store.run_folder import RunFolder
from qpdsl.run_store.run_record import RunInfo, RunRecord

_HOW = "give what it was started with, or leave out `--resume` to begin a new run"


def unfinished(folder: RunFolder, record: RunRecord, data: InputData) -> RunFile:
    """The newest unfinished run that `record` would repeat, open for writing.

    Its rows may be fewer than those of `data`, but one of them must be there, if it has any. Raises UsageError where
    there is none, with what the nearest one differs in, and where another process writes the only one.
    """
    found = list(_unfinished(folder, record.program, record.sweep))
    same = [info for info in found if info.record.key == record.key]
    fitting = [info for info in same if _shares_rows(folder, info, data)]
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


def others_like(folder: RunFolder, record: RunRecord) -> list[RunInfo]:
    """The kept runs that `record` would repeat on the same input, newest first."""
    found = [info for info in folder.infos() if info.record.key == record.key]
    return [info for info in reversed(found) if info.record.input_digest == record.input_digest]


def newest(folder: RunFolder, record: RunRecord) -> RunInfo | None:
    """The newest kept run that `record` would repeat, finished or not, of the same sweep; None where there is none."""
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
    """Whether a row of a run is one of these, or it has none, or its data is this."""
    if info.record.input_digest == data.digest or not info.totals.done:
        return True
    with RunFile.reading(folder.file(info.id)) as run:
        return any(kept.number < len(data.rows) and is_of(kept, data.rows[kept.number]) for kept in run.rows())


def _nothing_to_resume(folder: RunFolder, record: RunRecord, found: list[RunInfo]) -> UsageError:
    if found:
        near = min(found, key=lambda info: len(changes(info.record.fingerprint, record.fingerprint)))
        changed = ", ".join(changes(near.record.fingerprint, record.fingerprint))
        rows = f"{near.totals.done} of {near.record.rows} rows"
        return UsageError(f"cannot resume the run `{near.id}` ({rows}); changed since it began: {changed}", _HOW)
    done = newest(folder, record)
    if done is not None:
        return UsageError(
            f"the run `{done.id}` is finished, and no other of this program is unfinished",
            "leave out `--resume` to run it again; with `--reuse` its rows are taken over",
        )
    return UsageError(
        f"there is no unfinished run of `{record.program}` in `{folder.path}`", "leave out `--resume` to begin one"
    )
