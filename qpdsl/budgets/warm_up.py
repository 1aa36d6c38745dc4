"""A warm-up: the first rows of an input run by every way, where nothing is known of the ways yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from qpdsl.dataset.job import Job, run_rows
from qpdsl.dataset.row_outcome import Outcome
from qpdsl.inputs.input_row import InputData
from qpdsl.measures.grader import Grader
from qpdsl.run_store.recording import Recording
from qpdsl.run_store.run_folder import RunFolder
from qpdsl.run_store.run_record import RunRecord

if TYPE_CHECKING:
    from qpdsl.session import Session

# How many rows are run by every way.
WARM_UP_ROWS = 48
# What the runs of a warm-up are called in the list of runs.
SWEEP = "warm-up"


def warm_up_data(data: InputData, grader: Grader, rows: int = WARM_UP_ROWS) -> InputData | None:
    """The first `rows` rows that can be graded; None where there are fewer, so that there is nothing to learn from."""
    graded = [row for row in data.rows if grader.applies(row)][:rows]
    return replace(data, rows=tuple(graded)) if len(graded) == rows else None


async def warm_up(
    session: Session,
    jobs: Sequence[Job],
    records: Sequence[RunRecord],
    data: InputData,
    folder: RunFolder,
    done: Callable[[Outcome], None],
) -> None:
    """Runs the rows of `data` by every way, and keeps each way's run in `folder`; `done` is called for every row.

    `jobs` are the ways' own, planned with support, and `records` those of their runs. The runs are kept as any other,
    so the policy is then learned from them as from others. Where the session shares samples, ways that draw the same
    draw it once. Raises UsageError where a run cannot be kept.
    """
    for job, record in zip(jobs, records, strict=True):
        with Recording.begin(folder, replace(record, sweep=SWEEP), data, job.grader) as recording:

            def finished(number: int, outcome: Outcome, recording: Recording = recording) -> None:
                recording.add(number, outcome)
                done(outcome)

            await run_rows(session, job, recording.left(), None, finished)
            recording.end("finished")
