"""What runs the rows of a data set: a session in this process, or replicas elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from qpdsl.dataset.job import Job, run_rows
from qpdsl.dataset.row_outcome import Outcome
from qpdsl.inputs.input_row import InputRow

if TYPE_CHECKING:
    from qpdsl.session import Session


class RowRunner(Protocol):
    """Runs numbered rows of one job, in whatever order suits it."""

    async def run(self, rows: Sequence[tuple[int, InputRow]], done: Callable[[int, Outcome], None]) -> None:
        """Calls `done` in the event loop once for every row as it ends, or else raises.

        An error of `done` ends the run; a row's own failure is part of its outcome. Raises ServerGone, BudgetReached
        and ModelError.
        """


@dataclass(frozen=True)
class SessionRunner:
    """Runs rows over one session, in which the models of the job are loaded; see `run_rows`."""

    session: Session
    job: Job
    concurrency: int | None = None

    async def run(self, rows: Sequence[tuple[int, InputRow]], done: Callable[[int, Outcome], None]) -> None:
        await run_rows(self.session, self.job, rows, self.concurrency, done)
