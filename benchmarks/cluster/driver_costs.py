"""What the driver does for one row outside the dispatcher, timed: messages, the record, the run's file; and memory."""

from __future__ import annotations

import pickle
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from qpdsl.cluster.replica.messages import Begun, Done, Take, Task
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.store.run_file import SUFFIX, RunFile
from qpdsl.runs.store.run_record import RowRecord, RunRecord, row_key

_TIMES = 2_000
_TOGETHER = 20
_KEPT = 20_000


@dataclass(frozen=True)
class DriverCosts:
    """Seconds a row for its three messages, and bytes a row that the driver goes on holding.

    `commit` is the seconds of a commit of one row, `row` those of each row more in the same commit.
    """

    messages: float
    commit: float
    row: float
    input_bytes: float
    outcome_bytes: float


def problem(number: int) -> InputRow:
    """A row in the size of the shipped problems."""
    text = f"Mia has {number} boxes with 4 cards in each box, and gives 3 of them away. How many cards does Mia have?"
    return InputRow(str(number), {"problem": text}, str(number), {"level": number % 5})


def outcome(number: int) -> Outcome:
    """An outcome in the size of theirs."""
    return Outcome(
        id=str(number),
        answer=str(number * 4),
        score=0.93751,
        tokens_in=40,
        tokens_out=1200,
        near_ties=0,
        seconds=3.5,
        correct=True,
    )


def measured() -> DriverCosts:
    """All of them, on this machine and its disk."""
    alone, together = _commit(1), _commit(_TOGETHER)
    row = max(0.0, together - alone) / (_TOGETHER - 1)
    return DriverCosts(_messages(), alone, row, _held(problem), _held(outcome))


def _messages() -> float:
    """To write the message that gives a row, and to read those that tell of it, as the driver does for each."""
    take = Take((Task(1, problem(1)),))
    begun, done = pickle.dumps(Begun(1)), pickle.dumps(Done(1, outcome(1)))

    def exchange() -> None:
        pickle.dumps(take)
        pickle.loads(begun)
        pickle.loads(done)

    return _seconds(exchange, clock=time.process_time)


def _commit(together: int) -> float:
    """To add so many finished rows to a run's file, which waits for the disk once."""
    record = RunRecord(
        program="p",
        source="",
        parameters={},
        models={},
        seed=0,
        plan="",
        planned="",
        fingerprint={},
        input="",
        input_digest="",
        rows=_TIMES,
        grader="equal 1",
        started=time.time(),
        machine="",
    )
    with tempfile.TemporaryDirectory() as folder, RunFile.create(Path(folder) / f"run{SUFFIX}", record) as run:
        numbers = iter(range(10 * _TIMES))

        def record_of(number: int) -> RowRecord:
            return RowRecord(number=number, key=row_key(problem(number)), outcome=outcome(number), asked="Mia has")

        return _seconds(lambda: run.add(*map(record_of, islice(numbers, together))), _TIMES // 10)


def _held(make: Callable[[int], object]) -> float:
    """Bytes of one of many that are kept."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = {number: make(number) for number in range(_KEPT)}
        after, _ = tracemalloc.get_traced_memory()
        return (after - before) / len(kept)
    finally:
        tracemalloc.stop()


def _seconds(work: Callable[[], None], times: int = _TIMES, clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    for _ in range(times):
        work()
    return (clock() - start) / times
