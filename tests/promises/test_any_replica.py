"""The promise that rows on replicas come to what one process makes of them, once each, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.cluster_run import ClusterRun
from qpdsl.cluster.replica.messages import Task
from qpdsl.cluster.row_scheduler import MAX_LOSSES
from qpdsl.executor.events.stream import EventStream
from qpdsl.planner.plan.naive import plan
from qpdsl.runs.data.input_row import InputRow, NumberedRow
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import FinishedRow
from tests.support.cluster.scripted_replicas import SETUP, Lost, Script, ScriptedBackend, outcome_of
from tests.support.planner.lowered import lowered


@pytest.mark.parametrize("seed", range(12))
def test_every_row_once_and_as_one_process_has_it(seed: int) -> None:
    """Replicas are lost as rows begin, at random and with rows that end every replica; a few rows share a beginning."""
    rng = random.Random(seed)
    count, replicas = rng.randint(1, 60), rng.randint(1, 6)
    rows = [
        NumberedRow(number, InputRow(f"row-{number}", {"q": "a" * rng.choice([3, 600])})) for number in range(count)
    ]
    deadly = set(rng.sample(range(count), min(count, rng.choice([0, 0, 1, 2]))))
    unlucky, begun = rng.choice([0.0, 0.02, 0.1]), dict[int, int]()
    lost: dict[int, int] = dict.fromkeys(range(count), 0)

    def run(name: str, task: Task) -> None:
        begun[task.number] = begun.get(task.number, 0) + 1
        if task.number in deadly or rng.random() < unlucky:
            lost[task.number] += 1
            raise Lost

    backend = ScriptedBackend(Script(run, slots=rng.randint(1, 4), seconds=rng.choice([0.0, 0.001])))
    job = Job(plan(lowered("chat user=q | generate llm n=1")), None, 0)
    address = ClusterAddress("local", replicas if rng.random() < 0.5 else 1, replicas)
    done: dict[int, FinishedRow] = {}

    def keep(ended: Sequence[FinishedRow]) -> None:
        for row in ended:
            assert row.number not in done
            done[row.number] = row

    run_ = ClusterRun(address, SETUP, [job], EventStream(), backend=backend)
    asyncio.run(asyncio.wait_for(run_.run(rows, keep), 60))
    assert sorted(done) == [row.number for row in rows]
    failed = {number for number, row in done.items() if row.outcome.error is not None}
    # A row fails only where it was what its last replica ran alone.
    assert deadly <= failed
    assert all(lost[number] >= 1 and begun[number] == MAX_LOSSES for number in failed)
    for number in done.keys() - failed:
        assert done[number].outcome == outcome_of(Task(number, rows[number].row))
