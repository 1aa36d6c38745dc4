"""The command line.

Open `app.py` first: it lists the commands, which lie in `commands/`, and turns errors into one line and an exit code
(`exits.py`). `shared_options.py` holds the options that several commands take, `project_command.py` gives them what
`qpdsl.toml` says, `proposals.py` and `shells.py` complete command lines. The kinds of run lie in `runs/`;
`progress_notes.py` says what takes long. Every command that writes a file names all its files to `file_guard.py` first,
and every option that names a file has the type `FileName`. Everything is printed through `console.py`: stdout is for
data, stderr for notes and diagnostics, and a terminal gets nothing that it would obey. No command shows a traceback.
Modules here are imported by every command, so they import little.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Sequence

from qpdsl.cli.exits import Exit
from qpdsl.cli.signals import watch_signals
from qpdsl.garbage_collector import collections_seldom


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, this process's own by default, and returns its exit code.

    The user never sees a traceback unless QPDSL_DEBUG is set.
    """
    if argv is None:
        watch_signals()
    try:
        with collections_seldom():
            # Imported here, so that an interrupt during the imports is reported like any other.
            from qpdsl.cli.app import dispatch

            code = dispatch(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        code = Exit.INTERRUPTED
    if argv is None:
        _end(code)
    return code


def _end(code: int) -> None:
    """Ends the process, unless Python has threads to wait for.

    Python would take all modules apart first, which takes half as long as importing torch. Where an interrupt went
    through an `exec`, as in many an import, it would end itself by the signal. And it would wait for the threads of the
    user's functions, which may never end.
    """
    if code != Exit.INTERRUPTED and not _is_user_code_left_running():
        if any(not thread.daemon for thread in _others()):
            return
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


def _is_user_code_left_running() -> bool:
    """Whether a thread goes on in a function of the user, also one that was given up."""
    code = sys.modules.get("qpdsl.executor.runtime.instance.user_code")
    if code is None:
        return False
    return any(not thread.daemon or thread.name.endswith(code.LEFT_RUNNING) for thread in _others())


def _others() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
