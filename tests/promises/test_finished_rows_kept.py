"""The promise that a finished row is kept, once, however the process that ran it ends."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time

import pytest

from qpdsl.runs.graders.grader import EqualAnswer
from qpdsl.runs.store.recording import Recording
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_folder import RunFolder
from tests.support.paths import ROOT
from tests.support.saved_runs import inputs, outcome, record

ROWS = 20_000
# Goes on with a run, over replicas without processes, and says the number of each row once it is kept.
DRIVER = """
import asyncio, sys
from pathlib import Path
from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.cluster_run import ClusterRun
from qpdsl.runs.job import Job
from qpdsl.executor.events.stream import EventStream
from qpdsl.runs.graders.grader import EqualAnswer
from qpdsl.planner.plan.naive import plan
from qpdsl.runs.store.recording import Recording
from qpdsl.runs.store.run_file import RunFile
from tests.support.cluster.scripted_replicas import SETUP, Script, ScriptedBackend
from tests.support.saved_runs import inputs, record
from tests.support.planner.lowered import lowered

slots = int(sys.argv[2])
job = Job(plan(lowered("chat user=q | generate llm n=1")), None, 0)
data = inputs(int(sys.argv[3]))
run = RunFile.writing(Path(sys.argv[1]))
with asyncio.run(Recording.resume(run, record(rows=len(data.rows)), data, EqualAnswer())) as kept:
    def keep(rows):
        kept.add_all(rows)
        print(*(row.number for row in rows), flush=True)
    backend = ScriptedBackend(Script(slots=slots))
    cluster = ClusterRun(ClusterAddress("local", 4, 4), SETUP, [job], EventStream(), backend=backend)
    asyncio.run(cluster.run(kept.left(), keep))
"""


@pytest.mark.parametrize("seed", range(2))
def test_a_kill_loses_no_row_that_was_said_to_be_finished(runs: RunFolder, seed: int) -> None:
    rng = random.Random(seed)
    with Recording.begin(runs, record(rows=ROWS), inputs(ROWS), EqualAnswer()) as begun:
        begun.add(0, outcome(0))
        path = begun.run.path
    said = {0}
    for _ in range(2):
        command = [sys.executable, "-c", DRIVER, str(path), str(rng.randint(1, 16)), str(ROWS)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            time.sleep(rng.uniform(0.0, 0.2))
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.read().splitlines(keepends=True)
        # The last line may be cut.
        told = [int(word) for line in lines if line.endswith("\n") for word in line.split()]
        assert told and not said & set(told) and len(set(told)) == len(told)
        said |= set(told)
        with RunFile.reading(path) as run:
            kept = {row.number for row in run.rows()}
            assert said <= kept and run.info().totals.done == len(kept)
        # What was kept as the process was killed is not run again either.
        said = kept


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_cannot_be_written_are_no_finished_rows(runs: RunFolder, seed: int) -> None:
    """A disk that is full now and then: a row is there where its caller was not told of an error, and then once."""
    from qpdsl.errors import UsageError
    from qpdsl.runs.row_outcome import FinishedRow

    rng, count = random.Random(seed), 40
    told: set[int] = set()
    with Recording.begin(runs, record(rows=count), inputs(count), EqualAnswer()) as kept:
        database = kept.run._database
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        for _ in range(30):
            database.execute(f"PRAGMA max_page_count = {pages + rng.choice([0, 1, 4, 1000])}")
            left = [row.number for row in kept.left()]
            some = rng.sample(left, min(len(left), rng.randint(1, 5)))
            try:
                kept.add_all([FinishedRow(number, outcome(number, answer="x" * 900)) for number in some])
            except UsageError:
                continue
            told.update(some)
        path = kept.run.path
        assert kept.outcomes.keys() == told
    resumed = asyncio.run(Recording.resume(RunFile.writing(path), record(rows=count), inputs(count), EqualAnswer()))
    with resumed:
        assert resumed.outcomes.keys() == told and resumed.run.info().totals.done == len(told)
