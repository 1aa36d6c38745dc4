"""The promise that Ctrl-C ends a command within two seconds, whatever it is doing, and keeps the finished rows."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from tests.support.cli import write_rows
from tests.support.forked import MAIN, Forked, Forks
from tests.support.timing import assert_quick
from tests.support.tui.traces import BEAM

PROGRAM = """
model llm = "zoo/counting-mini"
program p(problem: text) -> text {
  chat user=problem
  generate llm n=2 temperature=0.9 max_tokens=6
  score f
  best by score
  return text
}
"""
# The first row's call never comes back; it marks once the three other rows have called too.
FUNCTIONS = """
import threading, time, qpdsl as qp
called = set()

def hangs(problem):
    called.add(problem)
    while "Mia" in problem:
        if len(called) == 4:
            qp.at_all_called()
        time.sleep(0.01)
    return 1.0

@qp.scorer
{kind} f(problem):
    return hangs(problem)
"""
# Rows that share a function go on beside a call that takes long after this time.
IMPATIENT = """
import qpdsl as qp
from qpdsl.executor.runtime.instance import user_code
import qpdsl.runs.job as job
user_code._PATIENCE = 0.1
qp.at_all_called = lambda: None
outcome, ended = job.outcome, []

def counted(*args, **named):
    ended.append(1)
    if len(ended) == 3:
        threading.Timer(0.05, mark).start()
    return outcome(*args, **named)

job.outcome = counted
"""
SWALLOWS = """
def swallows(*args, **named):
    mark()
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            pass
"""


@dataclass(frozen=True)
class Case:
    """Code that makes a command hang, the command, and how many rows are finished by then."""

    code: str
    command: str
    finished: int | None = None


RUN_ROWS = "run {files}/p.qp --input {files}/in.jsonl --python {files}/{functions}.py --no-greedy --concurrency 4"
CASES = {
    "a model loads": Case(
        "import qpdsl.session.session\nqpdsl.session.session.load = held\n", "run greedy --set problem=x"
    ),
    "planning takes the interrupt for an error": Case(
        SWALLOWS + "from qpdsl.session.planning import Planning\nPlanning.optimized = swallows\n", "explain greedy"
    ),
    "a step": Case(
        "from qpdsl.executor.engine.paged_engine import PagedEngine\nPagedEngine.step = held\n",
        "run greedy --set problem=x",
    ),
    "a plain function": Case(IMPATIENT, RUN_ROWS.format(files="{files}", functions="plain"), 3),
    "an async function that blocks": Case(IMPATIENT, RUN_ROWS.format(files="{files}", functions="later"), 3),
    "a row is written": Case(
        IMPATIENT + "from qpdsl.runs.store.run_file import RunFile\nRunFile.add = held\n",
        RUN_ROWS.format(files="{files}", functions="fine") + " --output out.jsonl",
        0,
    ),
    "explain --analyze": Case(
        IMPATIENT,
        "explain {files}/p.qp --analyze --input {files}/in.jsonl --python {files}/plain.py --concurrency 4",
    ),
    "profile": Case("import qpdsl.session.profile as profile\nprofile.measure_model = held\n", "profile"),
    "calibrate": Case(
        "import qpdsl.exit_heads.head_fitting as heads\nheads.load_modules = held\n",
        "calibrate zoo/counting-mini --text {files}/in.jsonl --field problem --output heads",
    ),
    "report": Case(
        SWALLOWS + "import qpdsl.tui.report.page as page\npage.page = swallows\n", "report {files}/trace.jsonl"
    ),
}
"""What the command is at, and how a call that never ends is put there."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "p.qp").write_text(PROGRAM)
    (folder / "plain.py").write_text(FUNCTIONS.format(kind="def"))
    (folder / "later.py").write_text(FUNCTIONS.format(kind="async def"))
    (folder / "fine.py").write_text("import qpdsl as qp\n@qp.scorer\ndef f(text):\n    return 1.0\n")
    (folder / "trace.jsonl").write_bytes(BEAM.read_bytes())
    write_rows(folder / "in.jsonl", [{"problem": f"{name} has 3 boxes."} for name in ("Mia", "Bo", "Ann", "Rosa")])
    return folder


def started(forks: Forks, folder: Path, files: Path, names: list[str]) -> list[Forked]:
    """The processes of these cases, each of them where it hangs."""
    processes = [
        forks.start(folder / str(number), CASES[name].code + MAIN, *CASES[name].command.format(files=files).split())
        for number, name in enumerate(names)
    ]
    for process in processes:
        process.wait_for_mark()
    return processes


def test_ctrl_c_ends_within_two_seconds(forks: Forks, files: Path, tmp_path: Path) -> None:
    rounds = count()

    def seconds() -> float:
        names = list(CASES)
        folder = tmp_path / str(next(rounds))
        folder.mkdir()
        processes = started(forks, folder, files, names)
        sent = time.monotonic()
        for process in processes:
            os.kill(process.pid, signal.SIGINT)
        ends = forks.ended(processes)
        for name, process, (code, _) in zip(names, processes, ends, strict=True):
            assert code == Exit.INTERRUPTED, (name, process.err)
            assert "interrupted" in process.err and "Traceback" not in process.err, (name, process.err)
            finished = CASES[name].finished
            if finished is not None:
                assert f"interrupted: {finished} of 4 rows are finished" in process.err, (name, process.err)
                assert len(list(map(json.loads, process.out.splitlines()))) == finished
        return max(at for _, at in ends) - sent

    assert_quick(seconds, 2.0)


def test_a_second_ctrl_c_ends_at_once(forks: Forks, files: Path, tmp_path: Path) -> None:
    """Where the first would let the command end in good order for an hour."""
    patient = "import qpdsl.cli.signals as signals\nsignals._SECONDS_TO_END = 3600\n"
    rounds = count()

    def seconds() -> float:
        folder = tmp_path / str(next(rounds))
        process = forks.start(
            folder, patient + CASES["a model loads"].code + MAIN, "run", "greedy", "--set", "problem=x"
        )
        process.wait_for_mark()
        os.kill(process.pid, signal.SIGINT)
        # Two signals that are both pending are one to the system.
        time.sleep(0.1)
        sent = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        ((code, at),) = forks.ended([process])
        assert code == Exit.INTERRUPTED
        return at - sent

    assert_quick(seconds, 0.5)


def test_a_thread_that_a_function_leaves_behind_does_not_keep_the_command_from_ending(
    forks: Forks, files: Path, tmp_path: Path
) -> None:
    functions = tmp_path / "leaves.py"
    functions.write_text(
        "import threading, qpdsl as qp\n@qp.scorer\ndef f(text):\n"
        "    threading.Thread(target=threading.Event().wait).start()\n    return 1.0\n"
    )
    command = f"run {files}/p.qp --input {files}/in.jsonl --python {functions} --no-greedy"
    process = forks.start(tmp_path / "run", MAIN, *command.split())
    assert forks.ended([process])[0][0] == Exit.OK and len(process.out.splitlines()) == 4
