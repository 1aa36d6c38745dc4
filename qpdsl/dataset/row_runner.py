"""What runs the rows of a data set: a session in this process, or replicas elsewhere.

Rows that end at about the same time are told together, so that whoever keeps them waits for the disk once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from qpdsl.dataset.job import Job, run_rows
from qpdsl.dataset.row_outcome import Outcome
from qpdsl.inputs.input_row import InputRow

if TYPE_CHECKING:
    from qpdsl.session import Session


@dataclass(frozen=True, slots=True)
class FinishedRow:
    """What came of the row of a number. `replica` is the one that ran it, where that could matter, else None.

    `reused` is the id of the run that computed it, None for the run that goes on now.
    """

    number: int
    outcome: Outcome
    replica: str | None = None
    reused: str | None = None


# What is called with rows that have ended, each row once; it returns when they are kept.
KeepRows = Callable[[Sequence[FinishedRow]], None]


class RowRunner(Protocol):
    """Runs numbered rows of one job, in whatever order suits it."""

    async def run(self, rows: Sequence[tuple[int, InputRow]], done: KeepRows) -> None:
        """Calls `done` in the event loop with every row, soon after it has ended, or else raises.

        However it ends, `done` was called with all rows that have ended, unless `done` itself has raised. An error of
        `done` ends the run; a row's own failure is part of its outcome. Raises ServerGone, BudgetReached and
        ModelError.
        """


@dataclass(frozen=True)
class SessionRunner:
    """Runs rows over one session, in which the models of the job are loaded; see `run_rows`."""

    session: Session
    job: Job
    concurrency: int | None = None

    async def run(self, rows: Sequence[tuple[int, InputRow]], done: KeepRows) -> None:
        def ended(number: int, outcome: Outcome) -> None:
            done([FinishedRow(number, outcome)])

        await run_rows(self.session, self.job, rows, self.concurrency, ended)
