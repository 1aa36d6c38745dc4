"""Running many rows of input at once over one session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qpdsl.outcome import Outcome, outcome
from qpdsl.planner.physical import PhysicalPlan
from qpdsl.rows import InputRow

if TYPE_CHECKING:
    from qpdsl.executor.runtime.run import Result
    from qpdsl.session import Session


@dataclass(frozen=True)
class Work:
    """What is run for each row: a plan and, to compare with, the plan that decodes the same problem greedily."""

    plan: PhysicalPlan
    greedy: PhysicalPlan | None
    seed: int
    with_rows: bool = False

    @property
    def models(self) -> dict[str, str]:
        """Every model that the plans name."""
        return {**(self.greedy.models if self.greedy else {}), **self.plan.models}


async def run_one(session: Session, work: Work, row: InputRow) -> tuple[Result, Result | None]:
    """What the program and greedy decoding give for one row, run side by side inside `session.running()`."""
    program = session.run(work.plan, row.arguments, work.seed, row.id)
    if work.greedy is None:
        return await program, None
    greedy = session.run(work.greedy, row.arguments, work.seed, f"{row.id} greedy", baseline=True)
    return await asyncio.gather(program, greedy)


async def run_rows(
    session: Session,
    work: Work,
    rows: Sequence[tuple[int, InputRow]],
    concurrency: int,
    done: Callable[[int, Outcome], None],
) -> None:
    """Runs numbered rows, up to `concurrency` at a time, and calls `done` for each as it ends.

    Greedy decoding is run for the rows that have a reference. An error of `done` ends the run; a row's own failure is
    part of its outcome.
    """
    pending = iter(rows)

    async def work_off() -> None:
        for number, row in pending:
            compared = work if row.reference is not None else replace(work, greedy=None)
            result, greedy = await run_one(session, compared, row)
            done(number, outcome(row, result, greedy, with_rows=work.with_rows))

    async with session.running():
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, len(rows))):
                    group.create_task(work_off())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
