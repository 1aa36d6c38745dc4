"""Finds whether the constraint of a stranger compiles in time, in a process that can be ended.

llguidance bounds most of what a constraint takes, but not how long it looks for a text that several regexes match
(`allOf`, `&`, `multipleOf`): that takes exponential time and memory, and a call in a thread cannot be ended.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

# Of processor time, so that a busy machine refuses nothing more.
_SECONDS = 1.0
_PROCESS = str(Path(__file__).with_name("compile_process.py"))


class CompileCheck:
    """Compiles grammars in a process of its own, which ends where one takes more than `seconds` of processor time."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def trouble(self, grammar: str) -> str | None:
        """Why the grammar cannot be compiled in time; None where it can, or where it does not take long to fail."""
        question = json.dumps({"grammar": grammar, "seconds": self._seconds}).encode() + b"\n"
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = _started()
            process = self._process
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(question)
                process.stdin.flush()
                if process.stdout.readline():
                    return None
            except OSError:
                pass
            code = process.wait()
            process.stdout.close()
            self._process = None
        if code == -signal.SIGPROF:
            return f"compiling it takes more than {self._seconds:g} s: combine fewer patterns"
        return f"the process that compiles it has ended, with code {code}"


def _started() -> subprocess.Popen[bytes]:
    """It ends with its stdin, which ends with this process; no signal of the terminal reaches it."""
    return subprocess.Popen(
        [sys.executable, "-P", "-B", "-X", "utf8", _PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


COMPILE_CHECK = CompileCheck()
