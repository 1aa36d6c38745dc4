"""A run and its dashboard as two processes, so that neither makes the other wait.

The run has a process group and a session of its own. What it prints is kept in files until the dashboard is closed.
"""

from __future__ import annotations

import codecs
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.live import folder
from qpdsl.cli.signals import leave_signals_alone
from qpdsl.cli.watched import WATCHED
from qpdsl.errors import UsageError, reason

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from qpdsl.cli import main; sys.exit(main(sys.argv[2:]))"
)
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What the dashboard has to close and to print what the run printed, where both were told to end.
_SECONDS_TO_LEAVE = 5.0


def check_terminal(command: str) -> None:
    """Raises UsageError where there is no terminal to draw on."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"`{command}` needs a terminal", "`qpdsl report` makes a page of a trace instead")


def check_trace(path: Path) -> None:
    """Raises UsageError where a file is no trace, as far as its first line tells."""
    from qpdsl.executor.events.trace import LineReader, TraceError, read_trace

    try:
        next(iter(read_trace(path, LineReader())), None)
    except TraceError as error:
        raise UsageError(f"`{path}`: {error}", "`qpdsl run … --trace FILE` writes one") from error
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {reason(error)}") from error


def run_watched(argv: Sequence[str], first: str) -> int:
    """Starts the command line without --tui and watches it, from the screen `first` on.

    Hands over what the run printed, and returns its exit code.
    """
    from qpdsl.cli.runs.compared_runs import ComparedRuns
    from qpdsl.tui.app import DashboardFault, watch_process
    from qpdsl.tui.widgets.questions import Leave

    kept = Path(tempfile.mkdtemp(prefix="run-", dir=folder()))
    with (kept / "stdout").open("wb") as out, (kept / "stderr").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(sys.path), *(arg for arg in argv if arg != "--tui")],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            # What it prints reaches the terminal through here, so it is not for a terminal yet.
            env={**{name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}, WATCHED: "1"},
        )
    leave_signals_alone()
    told_to_end = threading.Event()
    forwarded = _forward_endings(process, told_to_end)
    try:
        try:
            socket = folder() / f"{process.pid}.sock"
            leave = watch_process(process, socket, first, ComparedRuns(), told_to_end.is_set)
        except DashboardFault as fault:
            leave = Leave.HERE
            say(dashboard_failed(fault))
            if process.poll() is None:
                say(f"the run goes on here as process {process.pid}; `qpdsl top {process.pid}` shows it again")
        if leave is Leave.BEHIND and process.poll() is None:
            say(f"the run goes on as process {process.pid}; `qpdsl top {process.pid}` shows it again")
            say(f"help: what it prints is kept in `{kept}`")
            return Exit.OK
        if leave is Leave.STOP and process.poll() is None:
            process.send_signal(signal.SIGINT)
        code = _print_until_it_ends(process, kept)
    finally:
        for number, handler in forwarded.items():
            signal.signal(number, handler)
    shutil.rmtree(kept, ignore_errors=True)
    return _as_exit_code(code)


def dashboard_failed(fault: Exception) -> str:
    """The line that says so."""
    hint = "" if os.environ.get("QPDSL_DEBUG") else "; QPDSL_DEBUG=1 shows where"
    return f"error: the dashboard failed: {fault} (please report it{hint})"


def _forward_endings(process: subprocess.Popen[bytes], told_to_end: threading.Event) -> dict[signal.Signals, Any]:
    """The run is in a session of its own, so what ends this process is passed on to it, and it ends with the run.

    `told_to_end` is set then.
    """

    def forward(number: int, frame: object) -> None:
        process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)
        if number == signal.SIGHUP:
            # The terminal is gone: there is nothing left to draw on, or to print on.
            os._exit(128 + number)
        if not told_to_end.is_set():
            told_to_end.set()
            threading.Thread(target=_end_with, args=(process,), daemon=True).start()

    return {number: signal.signal(number, forward) for number in _ENDINGS}


def _end_with(process: subprocess.Popen[bytes]) -> None:
    """Ends this process soon after the run, also where its terminal takes nothing more."""
    code = process.wait()
    time.sleep(_SECONDS_TO_LEAVE)
    os._exit(_as_exit_code(code))


def _as_exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _print_until_it_ends(process: subprocess.Popen[bytes], kept: Path) -> int:
    """Passes on what the run has printed and prints, until it ends."""
    with (kept / "stdout").open("rb") as out, (kept / "stderr").open("rb") as err:
        ways = [(out, _decoder(), put), (err, _decoder(), say)]
        code = None
        while code is None:
            code = process.poll()
            for file, decoder, show in ways:
                text = decoder.decode(file.read(), final=code is not None)
                if text:
                    show(text, end="")
            if code is None:
                time.sleep(0.05)
    return code


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("backslashreplace")
