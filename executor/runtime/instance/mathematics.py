"""Whether two answers are the same mathematics, as `math-verify` sees it, computed in a process of its own.

What a model wrote can take very long, in arithmetic that Python cannot interrupt (`9^{9^9}`): then the process is
ended, and the answers count as two. The process runs this file as a script.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
import weakref
from contextlib import suppress

_SECONDS = 2.0
_READY = b"ready\n"


class NoMathematics(Exception):
    """`math-verify` cannot be used; the message says why."""


class Mathematics:
    """Asks the process, which is started when it is first needed, and again after it had to be ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    async def same(self, left: str, right: str) -> bool:
        """False also where the comparison takes longer than two seconds. Raises NoMathematics."""
        return await asyncio.to_thread(self._same, left, right)

    def _same(self, left: str, right: str) -> bool:
        with self._lock:
            if self._process is None:
                self._process = self._start()
            answer = _ask(self._process, json.dumps([left, right]))
            if answer is None:
                self._process.kill()
                self._process.communicate()
                self._process = None
            return answer or False

    def _start(self) -> subprocess.Popen[bytes]:
        if importlib.util.find_spec("math_verify") is None:
            raise NoMathematics("`equal=math` needs the Python package `math-verify`: pip install math-verify")
        path = os.pathsep.join(filter(None, sys.path))
        process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        weakref.finalize(self, process.kill)
        if process.stdout is None or process.stdout.readline() != _READY:
            process.kill()
            process.communicate()
            raise NoMathematics("`equal=math`: the Python package `math-verify` cannot be loaded")
        return process


def _ask(process: subprocess.Popen[bytes], question: str) -> bool | None:
    """The answer of the process, None where there is none in time."""
    if process.stdin is None or process.stdout is None:
        return None
    with suppress(OSError):
        process.stdin.write(question.encode() + b"\n")
        process.stdin.flush()
        if select.select([process.stdout], [], [], _SECONDS)[0]:
            return {b"true\n": True, b"false\n": False}.get(process.stdout.readline())
    return None


def _serve() -> None:
    """The process: for each line in, a pair of answers, one line out: whether they are the same."""
    import logging
    from functools import lru_cache
    from importlib import import_module

    library = import_module("math_verify")
    logging.disable()
    # The one of its ways to read a text that evaluates nothing as Python.
    latex = [library.LatexExtractionConfig()]

    @lru_cache(maxsize=1024)
    def parsed(text: str) -> object:
        return library.parse(f"${text}$", extraction_config=latex, parsing_timeout=None)

    out = sys.stdout.buffer
    out.write(_READY)
    out.flush()
    for line in sys.stdin.buffer:
        left, right = json.loads(line)
        out.write(b"true\n" if library.verify(parsed(left), parsed(right), timeout_seconds=None) else b"false\n")
        out.flush()


if __name__ == "__main__":
    _serve()
