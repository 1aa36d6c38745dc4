"""The events of a run: what it runs, and what comes of its rows."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence

from qpdsl import __version__
from qpdsl.cli.runs.run_options import RunOptions
from qpdsl.cli.watched import WatchedProcess
from qpdsl.executor.events.events import InputListed, RowDone, RunStarted
from qpdsl.executor.events.stream import EventStream
from qpdsl.planner.explain.plan import explain_json
from qpdsl.planner.explain.versions import rule_record
from qpdsl.planner.values.value import shown
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.store.run_record import asked, grader_name
from qpdsl.session.settings import Settings
from qpdsl.session.telemetry import exporting

_MAX_LISTED = 20_000


@contextlib.contextmanager
def run_events(
    process: WatchedProcess, options: RunOptions, job: Job, rows: Sequence[InputRow], input: str = ""
) -> Iterator[None]:
    """The events of a run while the block runs, and its telemetry, if that is wanted. `input` names the data."""
    stream = process.stream
    emit_start(stream, options, job, rows, input)
    with exporting(stream, options.otel):
        yield


def emit_start(stream: EventStream, settings: Settings, job: Job, rows: Sequence[InputRow], input: str) -> None:
    """Emits that a run of these rows begins, of the data that is named `input`."""
    stream.emit(_started(settings, job, rows, input))
    stream.emit(_listed(rows))


def emit_row(stream: EventStream, row: InputRow, outcome: Outcome) -> None:
    """Emits that a row of the input is done, and what it came to."""
    stream.emit(
        RowDone(
            row=outcome.id,
            answer="" if outcome.answer is None else shown(outcome.answer),
            score=outcome.score,
            prompt_tokens=outcome.tokens_in,
            sampled_tokens=outcome.tokens_out,
            seconds=outcome.seconds,
            reference=None if row.reference is None else shown(row.reference),
            correct=outcome.correct,
            greedy=None if outcome.greedy_correct is None else shown(outcome.greedy),
            greedy_correct=outcome.greedy_correct,
            error=outcome.failure,
            unanswered=outcome.unanswered if outcome.wrong_for_no_answer else None,
        )
    )


def _started(settings: Settings, job: Job, rows: Sequence[InputRow], input: str) -> RunStarted:
    return RunStarted(
        program=job.plan.name,
        plan=explain_json(job.plan),
        rows=len(rows),
        seed=job.seed,
        device=settings.device,
        concurrency=settings.concurrency or job.plan.in_flight or 1,
        pid=os.getpid(),
        wall=time.time(),
        version=__version__,
        max_tokens=settings.max_tokens_total,
        max_cost=settings.max_cost,
        rules={name: rule_record(name) for name in job.plan.rules},
        grader=grader_name(job.grader),
        input=input,
    )


def _listed(rows: Sequence[InputRow]) -> InputListed:
    first = rows[:_MAX_LISTED]
    return InputListed(
        ids=tuple(row.id for row in first),
        asked=tuple(map(asked, first)),
        references=tuple(None if row.reference is None else shown(row.reference) for row in first),
    )
