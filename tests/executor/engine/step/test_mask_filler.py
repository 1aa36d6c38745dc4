"""Masks are filled beside the forward where that pays, and nobody works on them once a step is over."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.step import mask_filler
from qpdsl.executor.engine.step.mask_filler import SideJob, SideThread
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.ticket import Ticket
from tests.support.executor.constrained import WIDTH, engine_with, plain_samples, requests
from tests.support.executor.models import served


def test_samples_are_the_same_with_masks_beside_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    fill = mask_filler.Filling._fill

    def noted(filling: Any) -> None:
        ran.append(threading.current_thread().name)
        fill(filling)

    monkeypatch.setattr(mask_filler, "_HAND_OVER", 0.0)
    monkeypatch.setattr(mask_filler.Filling, "_fill", noted)
    reports: list[StepReport] = []
    assert served(engine_with(on_step=reports.append), requests()) == plain_samples()
    assert "beside the forward" in ran
    assert all(report.mask_seconds + report.head_seconds < report.seconds for report in reports)
    assert sum(report.head_seconds for report in reports) > 0


@pytest.mark.parametrize("launches", [True, False])
def test_few_masks_are_filled_under_the_forward_of_a_device_and_before_that_of_a_cpu(launches: bool) -> None:
    request = requests()[0]
    sequence = Sequence.of(Ticket(request, lambda ticket: None), request)
    filling = mask_filler.MaskFiller(WIDTH).begin([Chunk(sequence, sequence.missing)], launches=launches)
    assert filling.rows == 1 and (filling._masks is None) == launches
    masks = filling.masks()
    assert masks is not None and 0 < masks.counts[0] < WIDTH


def test_samples_are_the_same_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(mask_filler, "_HAND_OVER", 0.0)
    monkeypatch.setattr(mask_filler, "SIDE_THREAD", SideThread())
    monkeypatch.setattr(threading.Thread, "start", refused)
    assert served(engine_with(), requests()) == plain_samples()


def test_what_a_job_raises_is_raised_where_it_is_waited_for() -> None:
    def fails() -> None:
        raise ValueError("no mask")

    job = SideJob(fails)
    SideThread().begin(job)
    with pytest.raises(ValueError, match="no mask"):
        job.wait()


def test_a_job_has_ended_when_its_step_is_given_up() -> None:
    entered, go, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        go.wait(10)
        ended.set()

    threads = SideThread()
    running, queued = SideJob(work), SideJob(lambda: pytest.fail("it was cancelled"))
    threads.begin(running)
    threads.begin(queued)
    assert entered.wait(10)
    queued.cancel()
    threading.Timer(0.05, go.set).start()
    running.cancel()
    assert ended.is_set()
    queued.wait()


def test_an_interrupt_does_not_overtake_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job, tries = SideJob(lambda: None), []
    run = job.run

    def interrupted() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise KeyboardInterrupt
        run()

    monkeypatch.setattr(job, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job.wait()
    assert len(tries) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_thread_neither_keeps_a_process_nor_is_missed_in_a_child() -> None:
    program = f"""
import os, time
from {mask_filler.__name__} import SIDE_THREAD, SideJob
def work():
    time.sleep(30)
done = SideJob(lambda: None); SIDE_THREAD.begin(done); done.wait()
child = os.fork()
if child == 0:
    again = SideJob(lambda: None); SIDE_THREAD.begin(again); again.wait(); os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
SIDE_THREAD.begin(SideJob(work))
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=20, check=False).returncode == 0
