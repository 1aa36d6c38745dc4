"""The command line. Every command lives in a file of its own, imported when it is called."""

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
