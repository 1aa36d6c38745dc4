"""What surrounds a run so that it can be watched: its first and last event, its trace file, its socket."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qpdsl import __version__
from qpdsl.arguments import shorten
from qpdsl.cli.exits import say
from qpdsl.cli.live import Server
from qpdsl.dataset.outcome import Outcome, shown
from qpdsl.dataset.rows import InputRow
from qpdsl.dataset.run import Work
from qpdsl.errors import UsageError, UserError, reason
from qpdsl.executor.events.events import InputListed, RowDone, RunEnded, RunStarted, Status
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.events.trace import TraceWriter
from qpdsl.planner.explain.plan import explain_json

# Set for a run that a dashboard started: it tells all from its first row on.
WATCHED = "_QPDSL_WATCHED"
_LISTED = 20_000
_ASKED = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """How a run is run, for whoever looks at it."""

    seed: int
    device: str
    concurrency: int | None
    trace: Path | None


@contextlib.contextmanager
def watched(work: Work, rows: Sequence[InputRow], given: Watching) -> Iterator[EventStream]:
    """The stream of a run that can be attached to, and that is traced where wanted, while the block runs.

    Raises UsageError where the trace cannot be written.
    """
    stream = EventStream()
    stream.emit(_started(work, rows, given))
    stream.emit(_listed(rows))
    if os.environ.get(WATCHED):
        stream.subscribe(lambda event: None, details=True)
    trace = None if given.trace is None else _open_trace(stream, given.trace)
    server: Server | None = None
    with contextlib.suppress(OSError, UserError):
        # A run that cannot be attached to is still a run.
        server = Server(stream)
    status: Status = "failed"
    error: str | None = None
    try:
        yield stream
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
        if trace is not None:
            trace.close()
            if trace.error is not None:
                say(f"warning: the trace `{given.trace}` is not whole: {reason(trace.error)}")


def tell_row(stream: EventStream, row: InputRow, outcome: Outcome) -> None:
    """Tells that a row of the input is done, and what it came to."""
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
            error=outcome.error,
        )
    )


def _started(work: Work, rows: Sequence[InputRow], given: Watching) -> RunStarted:
    return RunStarted(
        program=work.plan.name,
        plan=explain_json(work.plan),
        rows=len(rows),
        seed=given.seed,
        device=given.device,
        concurrency=given.concurrency or work.plan.in_flight or 1,
        pid=os.getpid(),
        wall=time.time(),
        version=__version__,
    )


def _listed(rows: Sequence[InputRow]) -> InputListed:
    first = rows[:_LISTED]
    return InputListed(
        ids=tuple(row.id for row in first),
        asked=tuple(_asked(row) for row in first),
        references=tuple(None if row.reference is None else shown(row.reference) for row in first),
    )


def _asked(row: InputRow) -> str:
    """The row's longest text argument: what tells it from others."""
    texts = [value for value in row.arguments.values() if isinstance(value, str)]
    return shorten(max(texts, key=len, default=""), _ASKED)


def _open_trace(stream: EventStream, path: Path) -> TraceWriter:
    try:
        return TraceWriter(stream, path)
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {reason(error)}") from error
