"""Rows of a saved run as the events that it emitted: for a dashboard and a page, though it recorded no trace.

No result depends on the plan or the schedule, so nothing of it needs to be saved: the rows run again, over what was
saved of their samples. What comes of them is what the run has; what the replay takes is not.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from qpdsl.cli.console import say
from qpdsl.cli.runs.repeated_run import Elsewhere, RepeatedRun, repeated
from qpdsl.cli.runs.run_events import emit_row, emit_start
from qpdsl.cli.signals import interruptible, run_until_interrupted
from qpdsl.errors import UsageError, shorten
from qpdsl.executor.checkpoint.model_digest import location_digest
from qpdsl.executor.events.codec import encode, header
from qpdsl.executor.events.events import (
    EngineStepped,
    Event,
    InstanceDone,
    RowDone,
    RunEnded,
    RunSaved,
    RunStarted,
    ServerReported,
)
from qpdsl.grammar.model_id import is_remote
from qpdsl.model_location import own_places
from qpdsl.planner.explain.quantities import exact_plural
from qpdsl.runs.compare.side import SavedRun, read_run
from qpdsl.runs.data.input_row import NumberedRow
from qpdsl.runs.row_outcome import FinishedRow
from qpdsl.runs.runner import LocalRunner
from qpdsl.runs.store.run_file import SUFFIX, RunFile
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RowRecord
from qpdsl.runs.whatif import RowReplay

# Of a run without samples so many rows are run again, where nobody says which.
_ROWS = 20


def is_trace_name(name: str) -> bool:
    """Whether a name means a trace: saved runs have names of their own, and files with a suffix of their own."""
    path = Path(name)
    return path.suffix != SUFFIX and (path.exists() or len(path.parts) > 1 or bool(path.suffix))


def replayed_events(name: str, ids: Sequence[str] = (), count: int | None = None) -> tuple[float, list[Event]]:
    """When the events of rows begin, on the monotonic clock, and these events: of the run that `name` means.

    Of rows with these `ids`, else of the first `count`; of all that have samples where neither is given. Raises what
    the run itself may raise.
    """
    saved = read_run(RunFolder().find(name))
    with RunFile.reading(saved.path) as file:
        has_samples = {row.number for row in saved.rows if file.samples(row.number) is not None}
        chosen = _chosen(saved, ids, count if ids or count or has_samples else _ROWS)
        with interruptible(), repeated(saved, Elsewhere()) as again:
            return _events(again, [row for row in chosen if again.is_here(row)], file, has_samples)


@contextlib.contextmanager
def trace_of(name: str, ids: Sequence[str], count: int | None) -> Iterator[Path]:
    """A trace of what `replayed_events` gives, while the block runs."""
    zero, events = replayed_events(name, ids, count)
    with tempfile.TemporaryDirectory(prefix="qpdsl-") as folder:
        path = Path(folder) / "trace.jsonl"
        lines = [header(), *(encode(event, zero) for event in events)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
        yield path


def _chosen(saved: SavedRun, ids: Sequence[str], count: int | None) -> list[RowRecord]:
    known = {row.outcome.id for row in saved.rows}
    for id in ids:
        if id not in known:
            hint = f"`qpdsl runs show {saved.info.id} --rows` lists its rows"
            raise UsageError(f"run `{saved.info.id}` has no row `{shorten(id, 40)}`", hint)
    rows = [row for row in saved.rows if not ids or row.outcome.id in ids]
    if not rows:
        raise UsageError(f"run `{saved.info.id}` has no finished row")
    if count is not None and count < len(rows):
        say(f"note: the first {exact_plural(count, 'row')} of {len(rows):,}; `--row ID` names others")
        return rows[:count]
    return rows


def _events(
    again: RepeatedRun, chosen: Sequence[RowRecord], file: RunFile, has_samples: set[int]
) -> tuple[float, list[Event]]:
    stream, found = again.session.events, list[Event]()
    ids = {id for id in again.job.plan.models.values() if not is_remote(id)}
    replay = RowReplay(file, {id: location_digest(*(place for place, _ in own_places(id))) for id in ids}, draws=True)
    rows = [NumberedRow(row.number, again.rows[row.number]) for row in chosen]
    drawn = sum(row.number not in has_samples for row in rows)
    if drawn:
        say(f"note: {exact_plural(drawn, 'row')} drawn again; `qpdsl run … --save-samples` saves what this takes")

    def done(ended: Sequence[FinishedRow]) -> None:
        for row in ended:
            emit_row(stream, again.rows[row.number], row.outcome)

    end = stream.subscribe(found.append, details=True)
    emit_start(stream, again.options, again.job, [row.row for row in rows], again.saved.record.input)
    stream.emit(RunSaved(run=file.id, replayed=True))
    runner = LocalRunner(
        again.session,
        [again.job],
        again.options.concurrency,
        through=lambda row: replay.through(row) if row.number in has_samples else None,
    )
    run_until_interrupted(runner.run(rows, done))
    stream.emit(RunEnded(status="done"))
    end()
    return stream.zero, list(_as_saved(found, again.saved))


def _as_saved(found: Sequence[Event], saved: SavedRun) -> Iterator[Event]:
    """What the run has, instead of what the replay measured: when it began and by what, and the seconds of its rows.

    What it has not is left out: forwards, and how servers stood.
    """
    record, seconds = saved.record, {row.outcome.id: row.outcome.seconds for row in saved.rows}
    for event in found:
        if isinstance(event, RunStarted):
            event = replace(event, wall=record.started, version=record.fingerprint["version"].partition(" ")[0])
        elif isinstance(event, RowDone):
            event = replace(event, seconds=seconds[event.row])
        elif isinstance(event, InstanceDone) and not event.baseline:
            event = replace(event, seconds=seconds[event.instance])
        if not isinstance(event, EngineStepped | ServerReported):
            yield event
