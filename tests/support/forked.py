"""Real processes in which torch is imported already: forks of one that waits for something to do."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

PATIENCE = 120.0

MAIN = """
from qpdsl.cli import main
sys.exit(main())
"""
"""What makes a process a `qpdsl` with its arguments."""

# What every process starts with. `mark()` says that it has come to where the test wants it. `held()` is a call into a
# library that lets go of Python's lock and that no signal ends.
_PRELUDE = """
import ctypes, os, sys, threading, time

def mark():
    os.close(os.open("mark", os.O_WRONLY | os.O_CREAT))

def held(*args, **named):
    mark()
    mutex = ctypes.create_string_buffer(64)
    while True:
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@dataclass
class Forked:
    """A process in a folder of its own, to which its output goes too."""

    pid: int
    folder: Path

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text(encoding="utf-8")

    @property
    def alive(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"

    def wait_for_mark(self) -> None:
        """Fails where the process ends without a mark."""
        deadline = time.monotonic() + PATIENCE
        while not (self.folder / "mark").exists():
            assert self.alive and time.monotonic() < deadline, f"no mark: {self.out}{self.err}"
            time.sleep(0.005)


class Forks:
    """Forks processes, and says when each has ended and with what exit code; a negative one is a signal's."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.support.forked import serve; serve()"],
            cwd=ROOT,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, folder: Path, code: str, *argv: object, terminal: str | None = None) -> Forked:
        """Runs Python code in a folder of its own, which is made, with `argv` as the arguments of `qpdsl`.

        `terminal`: the name of the one that it is on, instead of files.
        """
        folder.mkdir()
        # Whoever waits for what it prints may look before it has begun.
        for name in ("out", "err"):
            (folder / name).touch()
        question = {"folder": str(folder), "code": _PRELUDE + code, "argv": ["qpdsl", *map(str, argv)]}
        pid = self._ask({**question, "runs": os.environ["QPDSL_RUNS"], "terminal": terminal})
        return Forked(pid, folder)

    def ended(self, processes: Sequence[Forked]) -> list[tuple[int, float]]:
        """The exit code of each and when it ended, in seconds on the monotonic clock."""
        ends = self._ask({"wait": [process.pid for process in processes]})
        return [tuple(ends[str(process.pid)]) for process in processes]

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE)

    def _ask(self, question: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    server = Forks()
    yield server
    server.close()


def serve() -> None:
    """The process that waits: a question a line on stdin, an answer a line on stdout."""
    import qpdsl.session.profile  # noqa: F401
    from qpdsl.cli import main

    # Whatever the first run imports and compiles is there in the others.
    with contextlib.redirect_stdout(io.StringIO()):
        main(["run", "greedy", "--model", "llm=zoo/counting-mini", "--set", "problem=Mia has 3 boxes."])
    running: set[int] = set()
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            answer: object = _ends(question["wait"])
            running.difference_update(question["wait"])
        else:
            answer = pid = os.fork()
            if not pid:
                _become(question)
                return
            running.add(pid)
        print(json.dumps(answer), flush=True)
    # A test that failed may not have waited for its processes.
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    # Nothing is left to do, and torch takes its time to be unloaded.
    os._exit(0)


def _become(question: Any) -> None:
    """The forked process. It ends as any Python process does, by the end of its program."""
    folder = Path(question["folder"])
    os.chdir(folder)
    if question["terminal"]:
        os.login_tty(os.open(question["terminal"], os.O_RDWR))
    else:
        files = (os.devnull, os.O_RDONLY), ("out", os.O_WRONLY | os.O_CREAT), ("err", os.O_WRONLY | os.O_CREAT)
        for handle, (file, flags) in enumerate(files):
            opened = os.open(file, flags, 0o600)
            os.dup2(opened, handle)
            os.close(opened)
    os.environ["QPDSL_RUNS"] = question["runs"]
    sys.argv = question["argv"]
    exec(compile(question["code"], "code", "exec"), {"__name__": "__main__"})


def _ends(pids: Sequence[int]) -> dict[int, tuple[int, float]]:
    left, ends = set(pids), {}
    deadline = time.monotonic() + PATIENCE
    while left:
        for pid in sorted(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done and time.monotonic() > deadline:
                os.kill(pid, 9)
            if done:
                ends[pid] = (os.waitstatus_to_exitcode(status), time.monotonic())
                left.remove(pid)
        time.sleep(0.005)
    return ends
