"""The command line.

Open `app.py` first: it lists the commands, which lie in `commands/`, and turns errors into one line and an exit code
(`exits.py`). `shared_options.py` holds the options that several commands take, `proposals.py` and `shells.py` complete
command lines. The kinds of run lie in `runs/`. stdout is for data, stderr for notes and diagnostics; no command shows a
traceback. Modules here are imported by every command, so they import little.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from qpdsl.cli.exits import Exit


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, this process's own by default, and returns its exit code.

    The user never sees a traceback unless QPDSL_DEBUG is set.
    """
    # Threads that spin while they wait make a run many times slower where another process wants the core.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        # Imported here, so that an interrupt during the imports is reported like any other.
        from qpdsl.cli.app import dispatch

        code = dispatch(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        code = Exit.INTERRUPTED
    if argv is None and code == Exit.INTERRUPTED:
        # Where the interrupt went through an `exec`, as in many an import, Python would end itself by the signal.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code
