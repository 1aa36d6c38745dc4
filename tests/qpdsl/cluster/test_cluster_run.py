"""A run over replicas that are scripted: every row once, whatever is lost, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.cluster.cluster_run import ClusterRun
from qpdsl.cluster.replica.messages import Task
from qpdsl.cluster.row_scheduler import MAX_LOSSES
from qpdsl.errors import LoadError, UsageError
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.events.stream import EventStream
from qpdsl.planner.plan.naive import plan
from qpdsl.runs.data.input_row import InputRow, NumberedRow
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import FinishedRow, Outcome
from tests.support.cluster.scripted_replicas import FINGERPRINT, SETUP, Lost, Script, ScriptedBackend
from tests.support.planner.lowered import lowered

ROWS = [NumberedRow(number, InputRow(f"row-{number}", {})) for number in range(40)]


@dataclass
class Ran:
    """What a run came to: outcomes by number in the order in which they came, and notes."""

    run: ClusterRun
    backend: ScriptedBackend
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    marks: dict[int, str | None] = field(default_factory=dict)
    together: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    at_work: list[tuple[int, bool]] = field(default_factory=list)


@pytest.fixture(scope="module")
def job() -> Job:
    return Job(plan(lowered("chat user=q | generate llm n=1")), None, 0)


Start = Callable[..., Ran]


@pytest.fixture
def cluster(job: Job) -> Start:
    """Runs 40 rows by a script."""

    def start(script: Script, address: str = "local:2", *, allow_mixed: bool = False, done: object = None) -> Ran:
        backend = ScriptedBackend(script)
        notes: list[str] = []
        at_work: list[tuple[int, bool]] = []
        run = ClusterRun(
            ClusterAddress.parse(address),
            SETUP,
            [job],
            EventStream(),
            tell=notes.append,
            allow_mixed=allow_mixed,
            backend=backend,
            at_work=lambda row, runs: at_work.append((row.number, runs)),
        )
        ran = Ran(run, backend, notes=notes, at_work=at_work)

        def commit(rows: Sequence[FinishedRow]) -> None:
            ran.together.append(len(rows))
            for row in rows:
                assert row.number not in ran.outcomes
                ran.outcomes[row.number] = row.outcome
                ran.marks[row.number] = row.replica

        asyncio.run(asyncio.wait_for(run.run(ROWS, done or commit), 20))  # type: ignore[arg-type]
        return ran

    return start


def test_every_row_once_and_both_replicas_work(cluster: Start) -> None:
    ran = cluster(Script())
    assert {number: outcome.id for number, outcome in ran.outcomes.items()} == {row.number: row.row.id for row in ROWS}
    assert [figures.rows > 0 for figures in ran.run.figures] == [True, True]
    assert ran.backend.closed
    assert sorted(ran.backend.script.stopped) == ["replica 1", "replica 2"]


def test_rows_of_a_lost_replica_run_again(cluster: Start) -> None:
    def run(name: str, task: Task) -> None:
        if name == "replica 1" and task.number > 4:
            raise Lost

    ran = cluster(Script(run))
    assert {number: outcome.error for number, outcome in ran.outcomes.items()} == {row.number: None for row in ROWS}
    assert ran.backend.script.started == ["replica 1", "replica 2", "replica 3"]
    assert ran.run.figures[0].lost == "was ended by SIGKILL"
    assert any("run again" in note for note in ran.notes)
    runs = {number: [works for other, works in ran.at_work if other == number] for number in range(40)}
    # What the lost replica held is told to wait, and each row at last to run.
    assert all(own[-1] for own in runs.values()) and any(False in own for own in runs.values())


def test_a_row_that_ends_every_replica_fails_and_no_other(cluster: Start) -> None:
    def run(name: str, task: Task) -> None:
        if task.number == 7:
            raise Lost

    ran = cluster(Script(run, slots=4))
    errors = {number: outcome.error for number, outcome in ran.outcomes.items() if outcome.error is not None}
    assert list(errors) == [7]
    assert f"{MAX_LOSSES} replicas were lost while they ran this row" in str(errors[7])
    assert len(ran.backend.script.started) == 2 + MAX_LOSSES


def test_replicas_that_are_lost_while_they_load_end_the_run(cluster: Start) -> None:
    def load(name: str) -> None:
        raise Lost

    with pytest.raises(LoadError, match="3 replicas were lost one after another while they loaded"):
        cluster(Script(load=load))


def test_what_every_replica_would_say_ends_the_run(cluster: Start) -> None:
    def load(name: str) -> None:
        raise ModelError("zoo/none", "there is no such model")

    with pytest.raises(ModelError, match="no such model"):
        cluster(Script(load=load))


def test_an_error_of_done_ends_the_run(cluster: Start) -> None:
    def full(rows: Sequence[FinishedRow]) -> None:
        raise UsageError("no space left")

    with pytest.raises(UsageError, match="no space left"):
        cluster(Script(), done=full)


def test_rows_that_end_together_are_kept_together(cluster: Start) -> None:
    ran = cluster(Script(slots=4), "local:4")
    assert sum(ran.together) == len(ROWS) and max(ran.together) > 1


@pytest.mark.parametrize("last", range(1, 40, 6))
def test_however_the_run_ends_what_has_ended_is_kept(job: Job, last: int) -> None:
    ended: list[int] = []
    kept: list[int] = []

    class Counting(ClusterRun):
        def _end(self, task: Task, outcome: Outcome, replica: str) -> None:
            ended.append(task.number)
            super()._end(task, outcome, replica)

    def run(name: str, task: Task) -> None:
        if task.number == last:
            raise ModelError("zoo/none", "it is gone")

    backend = ScriptedBackend(Script(run, slots=3))
    run_ = Counting(ClusterAddress.parse("local:3"), SETUP, [job], EventStream(), backend=backend)
    with pytest.raises(ModelError):
        asyncio.run(run_.run(ROWS, lambda rows: kept.extend(row.number for row in rows)))
    assert kept == ended and (kept or last < 9)


OTHER = {**FINGERPRINT, "processor": "x86_64 avx2 avx512f fma", "vectors": "AVX512"}


def test_a_replica_that_differs_is_refused_by_name(cluster: Start) -> None:
    with pytest.raises(UsageError) as refused:
        cluster(Script(fingerprints={"replica 2": OTHER}))
    message = str(refused.value)
    assert "replica 2 on `here` differs from the others" in message
    assert "the processor's features (none of these and avx512f)" in message
    assert "how wide torch computes (AVX2 and AVX512)" in message
    assert "--allow-mixed" in str(refused.value.help)


def test_rows_of_a_mix_that_is_allowed_are_told_apart(cluster: Start) -> None:
    ran = cluster(Script(fingerprints={"replica 2": OTHER}), allow_mixed=True)
    assert ran.run.mixed == ["replica 2"]
    ran_there = ran.backend.script.rows["replica 2"]
    assert {number for number, mark in ran.marks.items() if mark == "replica 2"} == set(ran_there) != set()


def test_another_build_than_that_of_the_driver_is_refused(cluster: Start) -> None:
    both = {name: {**FINGERPRINT, "build": "build 2"} for name in ("replica 1", "replica 2")}
    with pytest.raises(UsageError, match=r"the build of qpdsl and its libraries \(build 1 and build 2\)"):
        cluster(Script(fingerprints=both))


def test_replicas_come_while_rows_wait_and_go_when_idle(cluster: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpdsl.cluster.fleet._SECONDS_BETWEEN_LOOKS", 0.01)
    ran = cluster(Script(seconds=0.02, slots=1), "local:1..3")
    assert len(ran.outcomes) == len(ROWS)
    assert 2 <= len(ran.backend.script.started) <= 3


def test_no_more_replicas_than_rows(cluster: Start) -> None:
    assert len(cluster(Script(), "local:200").backend.script.started) == len(ROWS)
