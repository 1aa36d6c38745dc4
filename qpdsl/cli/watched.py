"""A process that can be watched: `run`, `eval` and `serve` each are one from their first moment to their last.

Its events begin with what it is and end with how it ended. `qpdsl top` finds its socket, `--tui` shows it, and
`--trace` records it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence

from qpdsl import __version__
from qpdsl.cli.console import say
from qpdsl.cli.file_guard import OutputFile
from qpdsl.cli.live import Server
from qpdsl.cli.progress_notes import ProgressNotes
from qpdsl.errors import UserError, reason
from qpdsl.executor.events.events import Preparing, ProcessStarted, RunEnded, Status
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.events.trace import TraceWriter
from qpdsl.executor.remote.server.failures import PATIENCE

# Set for a process that a dashboard started: it emits detailed events from its first row on.
WATCHED = "_QPDSL_WATCHED"


class WatchedProcess:
    """`stream` has its events, `progress` what is said of them. A trace is not touched before `record`."""

    def __init__(self, stream: EventStream, progress: ProgressNotes) -> None:
        self.stream = stream
        self.progress = progress
        self._recorded: tuple[OutputFile, TraceWriter] | None = None

    def prepare(self, step: str) -> None:
        """Says what it does now, before its rows can run."""
        self.stream.emit(Preparing(step=step))

    def record(self, target: OutputFile | None) -> None:
        """Begins the trace, if one was asked for, with the events so far. Raises UsageError."""
        if target is not None:
            self._recorded = target, TraceWriter(self.stream, target.open())

    def close(self) -> None:
        """Ends the trace."""
        if self._recorded is not None:
            target, trace = self._recorded
            trace.close()
            if trace.error is not None:
                say(f"warning: the trace `{target.path}` is not whole: {reason(trace.error)}")


@contextlib.contextmanager
def watched(
    command: str,
    programs: Sequence[str],
    place: str | None = None,
    *,
    history: int | None = None,
    quiet: bool = False,
    verbose: bool = False,
    patience: float = PATIENCE,
) -> Iterator[WatchedProcess]:
    """This process as one that can be watched while the block runs. `history` bounds what is kept for late readers.

    Unless it is `quiet` it says what takes long; `verbose`, `patience`: see `ProgressNotes`.
    """
    stream = EventStream() if history is None else EventStream(history, history)
    # What is behind a dashboard has that to tell of it.
    quiet = quiet or bool(os.environ.get(WATCHED))
    process = WatchedProcess(stream, ProgressNotes(stream, patience, quiet=quiet, verbose=verbose))
    stream.emit(
        ProcessStarted(
            command=command,
            programs=tuple(programs),
            pid=os.getpid(),
            wall=time.time(),
            version=__version__,
            place=place or "",
        )
    )
    if command == "run" and os.environ.get(WATCHED):
        stream.subscribe(lambda event: None, details=True, patient=True)
    server: Server | None = None
    with contextlib.suppress(OSError, UserError):
        # A run that cannot be attached to is still a run.
        server = Server(stream)
    status: Status = "failed"
    error: str | None = None
    try:
        with process.progress.speaking():
            yield process
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
        process.close()
