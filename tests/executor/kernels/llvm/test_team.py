"""The threads of compiled kernels: all of them run, all are waited for, and what they raise is raised."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

from qpdsl.executor.kernels.llvm.compile import TEAM, Team
from tests.support.paths import ROOT

PATIENCE = 60.0


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_number_runs_once_and_all_at_the_same_time(threads: int) -> None:
    together, seen = threading.Barrier(threads, timeout=PATIENCE), []

    def job(number: int) -> None:
        together.wait()
        seen.append((number, threading.get_ident()))

    team = Team()
    for _ in range(3):
        seen.clear()
        team.run(threads, job)
        assert sorted(number for number, _ in seen) == [*range(threads)]
        assert len({thread for _, thread in seen}) == threads


@pytest.mark.parametrize("bad", [0, 2])
def test_what_a_thread_raises_is_raised_once_all_have_ended(bad: int) -> None:
    ended: list[int] = []

    def job(number: int) -> None:
        if number == bad:
            raise ValueError(number)
        time.sleep(0.02)
        ended.append(number)

    for _ in range(2):
        ended.clear()
        with pytest.raises(ValueError, match=str(bad)):
            TEAM.run(4, job)
        assert sorted(ended) == [number for number in range(4) if number != bad]


def test_callers_in_several_threads_take_turns() -> None:
    running, most = [0], [0]
    lock = threading.Lock()

    def job(number: int) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.001)
        with lock:
            running[0] -= 1

    def work() -> None:
        for _ in range(10):
            TEAM.run(3, job)

    others = [threading.Thread(target=work) for _ in range(3)]
    for other in others:
        other.start()
    work()
    for other in others:
        other.join(PATIENCE)
        assert not other.is_alive()
    # More would be two jobs at once: a kernel's threads wait for each other.
    assert running == [0] and 1 < most[0] <= 3


def test_an_interrupt_is_raised_when_no_thread_works_any_more() -> None:
    ended: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def job(number: int) -> None:
        if number:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.1)
        ended.append(number)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            TEAM.run(2, job)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert 1 in ended
    ended.clear()
    TEAM.run(2, ended.append)
    assert sorted(ended) == [0, 1]


def test_a_job_does_not_outlive_its_run() -> None:
    class Large:
        pass

    large = Large()
    TEAM.run(3, lambda number, kept=large: None)
    gone = weakref.ref(large)
    del large
    deadline = time.monotonic() + PATIENCE
    while gone() is not None:
        gc.collect()
        assert time.monotonic() < deadline
        time.sleep(0.001)


FORKS = """
import os, threading, time
from qpdsl.executor.kernels.llvm.compile import TEAM

def numbers(threads):
    seen = []
    TEAM.run(threads, seen.append)
    return sorted(seen)

assert numbers(2) == [0, 1]
# Forked in the middle of another thread's job, whose lock the child would wait for.
inside, go_on = threading.Event(), threading.Event()
def job(number):
    inside.set()
    go_on.wait()
other = threading.Thread(target=TEAM.run, args=(2, job))
other.start()
inside.wait()
child = os.fork()
if not child:
    os._exit(0 if numbers(3) == [0, 1, 2] else 1)
go_on.set()
other.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert numbers(3) == [0, 1, 2]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_threads_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
