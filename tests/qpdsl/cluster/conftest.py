"""A small job, its rows, and what one session makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from qpdsl.dataset.job import Job, run_rows
from qpdsl.dataset.row_outcome import Outcome
from qpdsl.inputs.input_row import InputRow
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.values.json_values import dumps
from tests.support.cli import SAMPLED
from tests.support.planner.lowered import program_of


@dataclass(frozen=True)
class Sampling:
    """A job that samples, its numbered rows, and their records from one session in this process."""

    job: Job
    rows: Sequence[tuple[int, InputRow]]
    records: dict[int, str]


def record(outcome: Outcome) -> str:
    """What the output has of a row."""
    return dumps(outcome.record(timing=False))


@pytest.fixture(scope="session")
def sampling() -> Sampling:
    from qpdsl.session import Session

    job = Job(plan(program_of(SAMPLED)), None, 7)
    texts = [f"Mia has {number} boxes with 4 cards in each box. How many cards does Mia have?" for number in range(24)]
    rows = [
        (number, InputRow(str(number), {"problem": text, "n": 2, "limit": 12}, "1"))
        for number, text in enumerate(texts)
    ]
    session = Session()
    session.load(job.plan)
    records: dict[int, str] = {}
    asyncio.run(run_rows(session, job, rows, 4, lambda number, outcome: records.update({number: record(outcome)})))
    assert not any('"error"' in text for text in records.values())
    return Sampling(job, rows, records)
