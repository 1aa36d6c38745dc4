"""Running many rows of input at once over one session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qpdsl.dataset.outcome import Outcome, outcome
from qpdsl.dataset.rows import InputRow
from qpdsl.planner.plan.physical import PhysicalPlan

if TYPE_CHECKING:
    from qpdsl.executor.runtime.run import Result
    from qpdsl.session import Session


@dataclass(frozen=True)
class Work:
    """What is run for each row: a plan and, to compare with, the plan that decodes the same problem greedily.

    `written` is the plan as no rule has touched it, and `planned` says in words which rules did: what a run is
    known by.
    """

    plan: PhysicalPlan
    greedy: PhysicalPlan | None
    seed: int
    with_rows: bool = False
    written: PhysicalPlan | None = None
    planned: str = "optimized"

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
    concurrency: int | None,
    done: Callable[[int, Outcome], None],
) -> None:
    """Runs numbered rows, up to `concurrency` at a time, and calls `done` for each as it ends.

    Without a `concurrency` the plan says how many: one more starts while fewer sequences than its floor are at work, up
    to its problems in flight; a plan that says nothing of it runs one at a time. Greedy decoding is run for the rows
    that have a reference. An error of `done` ends the run; a row's own failure is part of its outcome.
    """

    async def run(number: int, row: InputRow) -> None:
        compared = work if row.reference is not None else replace(work, greedy=None)
        result, greedy = await run_one(session, compared, row)
        done(number, outcome(row, result, greedy, with_rows=work.with_rows))

    most, floor = (work.plan.in_flight or 1, work.plan.floor) if concurrency is None else (concurrency, 0)
    async with session.running():
        try:
            async with asyncio.TaskGroup() as group, session.below(floor) as below:
                flying: set[asyncio.Task[None]] = set()
                for number, row in rows:
                    while len(flying) >= most or (flying and not below.is_set()):
                        waiting = asyncio.ensure_future(below.wait()) if len(flying) < most else None
                        await asyncio.wait({*flying, *([waiting] if waiting else [])}, return_when=_FIRST)
                        if waiting is not None:
                            waiting.cancel()
                        flying = {task for task in flying if not task.done()}
                    flying.add(group.create_task(run(number, row)))
                    await session.settled()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None


_FIRST = asyncio.FIRST_COMPLETED
