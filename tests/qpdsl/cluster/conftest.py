"""A small job, its rows, and what one session makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from qpdsl.planner.plan.naive import plan
from qpdsl.planner.values.value import dumps
from qpdsl.runs.data.input_row import InputRow, NumberedRow
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import FinishedRow, Outcome
from qpdsl.runs.runner import LocalRunner
from tests.support.cli import SAMPLED
from tests.support.planner.lowered import program_of


@dataclass(frozen=True)
class Sampling:
    """A job that samples, its numbered rows, and their records from one session in this process."""

    job: Job
    rows: Sequence[NumberedRow]
    records: dict[int, str]


def record(outcome: Outcome) -> str:
    """What the output has of a row."""
    return dumps(outcome.record(timing=False))


@pytest.fixture(scope="session")
def sampling() -> Sampling:
    from qpdsl.session.session import Session

    job = Job(plan(program_of(SAMPLED)), None, 7)
    texts = [f"Mia has {number} boxes with 4 cards in each box. How many cards does Mia have?" for number in range(24)]
    rows = [
        NumberedRow(number, InputRow(str(number), {"problem": text, "n": 2, "limit": 12}, "1"))
        for number, text in enumerate(texts)
    ]
    session = Session()
    session.load(job.plan)
    records: dict[int, str] = {}

    def done(ended: Sequence[FinishedRow]) -> None:
        records.update((row.number, record(row.outcome)) for row in ended)

    asyncio.run(LocalRunner(session, [job], 4).run(rows, done))
    assert not any('"error"' in text for text in records.values())
    return Sampling(job, rows, records)
