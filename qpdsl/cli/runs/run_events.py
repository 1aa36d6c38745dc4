"""The events of a run: the first and the last, those of its rows, and the trace file and the socket that they go to."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence

from qpdsl import __version__
from qpdsl.cli.console import say
from qpdsl.cli.file_guard import OutputFile
from qpdsl.cli.live import Server
from qpdsl.cli.runs.run_options import RunOptions
from qpdsl.errors import UserError, reason
from qpdsl.executor.events.events import InputListed, RowDone, RunEnded, RunStarted, Status
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.events.trace import TraceWriter
from qpdsl.planner.explain.plan import explain_json
from qpdsl.planner.values.value import shown
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.store.run_record import asked
from qpdsl.session.telemetry import exported, is_wanted

# Set for a run that a dashboard started: it emits detailed events from its first row on.
WATCHED = "_QPDSL_WATCHED"
_MAX_LISTED = 20_000


class RunEvents:
    """The stream of a run, and its trace file, which is not touched before `record`."""

    def __init__(self, trace: OutputFile | None) -> None:
        self.stream = EventStream()
        self._target = trace
        self._trace: TraceWriter | None = None

    def record(self) -> None:
        """Begins the trace, if one was asked for, with the events so far. Raises UsageError."""
        if self._target is not None:
            self._trace = TraceWriter(self.stream, self._target.open())

    def close(self) -> None:
        """Ends the trace."""
        if self._trace is not None and self._target is not None:
            self._trace.close()
            if self._trace.error is not None:
                say(f"warning: the trace `{self._target.path}` is not whole: {reason(self._trace.error)}")


@contextlib.contextmanager
def run_events(
    options: RunOptions, job: Job, rows: Sequence[InputRow], trace: OutputFile | None
) -> Iterator[RunEvents]:
    """The events of a run while the block runs, which can be attached to."""
    events = RunEvents(trace)
    stream = events.stream
    stream.emit(_started(options, job, rows))
    stream.emit(_listed(rows))
    if os.environ.get(WATCHED):
        stream.subscribe(lambda event: None, details=True)
    end_telemetry: Callable[[], None] | None = None
    server: Server | None = None
    with contextlib.suppress(OSError, UserError):
        # A run that cannot be attached to is still a run.
        server = Server(stream)
    status: Status = "failed"
    error: str | None = None
    try:
        if is_wanted(options.otel):
            end_telemetry = exported(stream, options.otel)
        yield events
        status = "done"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    except BaseException as failure:
        error = str(failure) or type(failure).__name__
        raise
    finally:
        if not stream.ended:
            stream.emit(RunEnded(status=status, error=error))
        if server is not None:
            server.close()
        if end_telemetry is not None:
            end_telemetry()
        events.close()


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


def _started(options: RunOptions, job: Job, rows: Sequence[InputRow]) -> RunStarted:
    return RunStarted(
        program=job.plan.name,
        plan=explain_json(job.plan),
        rows=len(rows),
        seed=job.seed,
        device=options.device,
        concurrency=options.concurrency or job.plan.in_flight or 1,
        pid=os.getpid(),
        wall=time.time(),
        version=__version__,
    )


def _listed(rows: Sequence[InputRow]) -> InputListed:
    first = rows[:_MAX_LISTED]
    return InputListed(
        ids=tuple(row.id for row in first),
        asked=tuple(map(asked, first)),
        references=tuple(None if row.reference is None else shown(row.reference) for row in first),
    )
