"""Real replicas, as processes and as Ray actors: the bytes of one session, also when one is killed in mid-run."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec

import pytest

from qpdsl.cluster.backends.process_backend import ProcessBackend
from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.cluster_run import ClusterRun
from qpdsl.cluster.replica.messages import ReplicaSetup, Take, Task
from qpdsl.cluster.replica.row_work import setup_of_rows
from qpdsl.errors import UsageError
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.events.events import EngineStepped, Event, InstanceDone, ModelsLoaded
from qpdsl.executor.events.stream import EventStream
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.row_outcome import FinishedRow
from qpdsl.session.settings import SessionSettings
from tests.qpdsl.cluster.conftest import Sampling, record

WITH_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra")


@pytest.mark.parametrize("address", ["local:2", pytest.param("ray:2", marks=WITH_RAY)])
def test_a_killed_replica_changes_no_byte(sampling: Sampling, address: str) -> None:
    events: list[Event] = []
    notes: list[str] = []
    stream = EventStream()
    stream.subscribe(events.append)
    setup = setup_of_rows([sampling.job], SessionSettings(), concurrency=2)
    run = ClusterRun(ClusterAddress.parse(address), setup, [sampling.job], stream, tell=notes.append)
    records: dict[int, str] = {}
    killed: list[int] = []

    def done(rows: Sequence[FinishedRow]) -> None:
        for row in rows:
            assert row.number not in records
            records[row.number] = record(row.outcome)
        if not killed:
            own = next(figures for figures in run.figures if figures.rows)
            killed.append(own.process)
            os.kill(own.process, signal.SIGKILL)

    asyncio.run(run.run(sampling.rows, done))
    assert records == sampling.records
    assert [own.process for own in run.figures if own.lost is not None] == killed
    assert len(run.figures) == 3
    assert any("rows run again" in note for note in notes)
    assert sum(isinstance(event, ModelsLoaded) for event in events) == 1
    steps = [event.report for event in events if isinstance(event, EngineStepped)]
    assert {report.model.partition(" @ ")[0] for report in steps} == {"zoo/counting"}
    assert any(isinstance(event, InstanceDone) for event in events)


class Ended:
    """A process that has ended, and what it saw of GPUs."""

    def __init__(self, seen: list[str], env: dict[str, str]) -> None:
        seen.append(env["CUDA_VISIBLE_DEVICES"])

    def poll(self) -> int:
        return 0

    def wait(self, timeout: float | None = None) -> int:
        return 0


def test_each_replica_sees_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, env, **others: Ended(seen, env))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-8f1c,5")

    async def start(most: int, numbers: Sequence[int], device: str = "cuda") -> None:
        backend = ProcessBackend(most)
        setup = setup_of_rows([], SessionSettings(device=device), concurrency=1)
        for number in numbers:
            await (await backend.start(f"replica {number + 1}", number, setup)).close()

    # One that was lost is followed by another in its place.
    asyncio.run(start(3, [0, 1, 2, 1]))
    assert seen == ["3", "GPU-8f1c", "5", "GPU-8f1c"]
    for most, device, words in ((4, "cuda", "shows 3 GPUs"), (2, "cuda:1", "is one GPU")):
        with pytest.raises(UsageError, match=words):
            asyncio.run(start(most, [0], device))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UsageError, match="no GPU is to be seen"):
        asyncio.run(start(1, [0]))
    assert len(seen) == 4


def test_a_model_that_is_not_there_is_told_by_its_replica(sampling: Sampling) -> None:
    from dataclasses import replace

    plan = replace(sampling.job.plan, models={"llm": "/nowhere/model"})
    job = replace(sampling.job, plan=plan)
    run = ClusterRun(ClusterAddress.parse("local:1"), setup_of_rows([job], SessionSettings()), [job], EventStream())
    with pytest.raises(ModelError, match="/nowhere/model"):
        asyncio.run(run.run(sampling.rows, lambda rows: None))


def test_a_process_that_stands_still_holds_nobody_up() -> None:
    async def run() -> None:
        setup = ReplicaSetup.of(b"work" * (1 << 20), SessionSettings())
        link = await ProcessBackend(1).start("replica 1", 0, setup)
        os.kill(link._process.pid, signal.SIGSTOP)
        link.send(Take((Task(0, InputRow("a" * (4 << 20), {})),)))
        await link.close()

    asyncio.run(run())
