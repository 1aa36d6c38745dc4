"""Killed, interrupted, or watched on a terminal: real processes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pexpect
import pytest
from pexpect.fdpexpect import fdspawn

from qpdsl.cli.exits import Exit
from qpdsl.runs.store.run_folder import RunFolder
from tests.support.cli import Run, write_rows
from tests.support.forked import MAIN, Forked, Forks
from tests.support.paths import ROOT
from tests.support.saved_runs import rows_of_last

PATIENCE = 120.0

INTERRUPTED_LOADING = """
import qpdsl.session.session
from qpdsl.cli import main

def load(*args, **named):
    mark()
    time.sleep(3600)

qpdsl.session.session.load = load
sys.exit(main())
"""

INTERRUPTED_IMPORT = """\
import sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "qpdsl.session.session":
            exec("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)")

sys.meta_path.insert(0, Finder())
"""

# The first row never ends; the signal comes when the five others have.
INTERRUPTED_AFTER_FIVE = """\
import asyncio, os, sys
import qpdsl.runs.job
from qpdsl.cli import main

run_one, outcome, ended = qpdsl.runs.job.run_one, qpdsl.runs.job.outcome, []

async def run(session, job, row, *through):
    return await (asyncio.sleep(3600) if row.id == "1" else run_one(session, job, row, *through))

def counted(*args, **named):
    ended.append(1)
    if len(ended) == 5:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), {signal})
    return outcome(*args, **named)

qpdsl.runs.job.run_one, qpdsl.runs.job.outcome = run, counted
sys.exit(main())
"""


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Enough rows for a run of some seconds."""
    problem = "Mia has {} boxes with 4 cards in each box. Mia loses 3. How many cards does Mia have?"
    rows = [{"problem": problem.format(number), "answer": "1"} for number in range(10, 50)]
    return write_rows(tmp_path / "many.jsonl", rows)


def command(many: Path, output: Path) -> list[str]:
    args = ["run", "self_consistency", "--set", "n=4", "--input", many, "--output", output, "--concurrency", "4"]
    return [str(arg) for arg in args]


def wait_for_rows(process: Forked, runs: RunFolder, rows: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while rows_of_last(runs) < rows:
        assert process.alive and time.monotonic() < deadline, f"no {rows} rows: {process.out}{process.err}"
        time.sleep(0.01)


def test_killed_half_way_and_resumed_gives_the_same_bytes(
    qpdsl: Run, forks: Forks, many: Path, tmp_path: Path, runs: RunFolder
) -> None:
    """Killed twice, each time with more rows: none is lost, and none is there twice."""
    output, whole = tmp_path / "killed.jsonl", tmp_path / "whole.jsonl"
    done = 0
    for resume in ([], ["--resume"]):
        process = forks.start(tmp_path / f"run{done}", MAIN, *command(many, output), *resume)
        wait_for_rows(process, runs, done + 5)
        os.kill(process.pid, signal.SIGKILL)
        ((code, _),) = forks.ended([process])
        assert code == -signal.SIGKILL and not output.exists()
        assert done + 5 <= rows_of_last(runs) < 40
        done = rows_of_last(runs)

    ran = qpdsl(*command(many, output), "--resume")
    assert ran.code == Exit.OK and f"{done} of 40 rows are there" in ran.err
    assert len(runs.ids()) == 1 and rows_of_last(runs) == 40
    assert qpdsl(*command(many, whole)).code == Exit.OK
    assert output.read_bytes() == whole.read_bytes()


def test_a_terminated_run_keeps_what_is_finished(forks: Forks, many: Path, tmp_path: Path, runs: RunFolder) -> None:
    process = forks.start(tmp_path / "run", MAIN, *command(many, tmp_path / "out.jsonl"))
    wait_for_rows(process, runs, 3)
    os.kill(process.pid, signal.SIGTERM)
    ((code, _),) = forks.ended([process])
    err = process.err
    assert code == Exit.INTERRUPTED
    assert process.out == "" and "Traceback" not in err and "\033" not in err
    done = rows_of_last(runs)
    assert err.splitlines()[0] == f"interrupted: {done} of 40 rows are finished"
    assert f"{done} of 40 rows are saved in run `{runs.ids()[-1]}`" in err
    assert "`--resume` goes on from there" in err and err.count("\n") == 2


def test_interrupted_while_loading(forks: Forks, many: Path, tmp_path: Path, runs: RunFolder) -> None:
    process = forks.start(tmp_path / "run", INTERRUPTED_LOADING, *command(many, tmp_path / "out.jsonl"))
    process.wait_for_mark()
    os.kill(process.pid, signal.SIGINT)
    ((code, _),) = forks.ended([process])
    assert (code, process.err) == (Exit.INTERRUPTED, "interrupted: 0 of 40 rows are finished\n")
    assert not list(tmp_path.glob("out.jsonl*")) and not runs.ids()


def test_interrupted_inside_an_import_of_a_run_over_rows(many: Path, tmp_path: Path) -> None:
    """Python ends itself by the signal where the interrupt went through an `exec` of text, whoever caught it."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_IMPORT)
    args = [sys.executable, "-m", "qpdsl", "run", "greedy", "--input", str(many), "-q"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.run(args, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert (process.returncode, process.stderr) == (Exit.INTERRUPTED, "interrupted: 0 of 40 rows are finished\n")


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
def test_without_an_output_file_the_finished_rows_are_printed(
    forks: Forks, tmp_path: Path, runs: RunFolder, signal_: signal.Signals
) -> None:
    data = write_rows(tmp_path / "d.jsonl", [{"problem": f"Mia has {n} cards."} for n in range(6)])
    script = INTERRUPTED_AFTER_FIVE.format(signal=int(signal_))
    process = forks.start(tmp_path / "run", script, "run", "greedy", "--input", data)
    ((code, _),) = forks.ended([process])
    assert code == Exit.INTERRUPTED
    assert [json.loads(line)["id"] for line in process.out.splitlines()] == ["2", "3", "4", "5", "6"]
    assert process.err.splitlines() == [
        "interrupted: 5 of 6 rows are finished",
        f"help: 5 of 6 rows are saved in run `{runs.ids()[-1]}`; the same command with `--resume` goes on from there",
    ]


def test_the_bar_is_drawn_on_a_terminal_and_cleared_by_ctrl_c(forks: Forks, many: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, 100))
    process = forks.start(
        tmp_path / "run",
        'os.environ["TERM"] = "xterm"' + MAIN,
        *command(many, tmp_path / "out.jsonl"),
        terminal=os.ttyname(theirs),
    )
    child = fdspawn(ours, encoding="utf-8", codec_errors="replace", timeout=PATIENCE)
    child.expect(r"[1-9]\d*/40.* rows [\d,]+ tokens/s .*left")
    # The terminal ends when nobody has it open.
    os.close(theirs)
    child.send("\x03")
    child.expect(r"interrupted: \d+ of 40 rows are finished")
    child.expect(pexpect.EOF)
    ((code, _),) = forks.ended([process])
    assert code == Exit.INTERRUPTED
    assert "Traceback" not in child.before


def test_no_bar_where_stderr_is_no_terminal(qpdsl: Run, sampled: Path, problems: Path) -> None:
    ran = qpdsl("run", sampled, "--input", problems)
    assert "\r" not in ran.err and "left" not in ran.err and "━" not in ran.err


def test_a_reader_that_leaves_ends_a_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(
        [sys.executable, "-m", "qpdsl", "models"], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == Exit.CLOSED and err == ""
