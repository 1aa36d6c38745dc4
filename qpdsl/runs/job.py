"""What is run for every row of a data set, and its outcome for one row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from qpdsl.errors import UsageError, meets_every_row
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.requests.errors import EngineError
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.grader import EqualAnswer, Grader
from qpdsl.runs.row_outcome import Outcome, outcome
from qpdsl.runs.trajectories import trajectory_of

if TYPE_CHECKING:
    from qpdsl.executor.requests.engine import Engine
    from qpdsl.executor.runtime.instance.functions import PythonFunction
    from qpdsl.executor.runtime.instance.kept_draws import KeptDraws
    from qpdsl.executor.runtime.instance.tools import CallStore
    from qpdsl.executor.runtime.run import InstanceResult
    from qpdsl.session.prepare import Prepared
    from qpdsl.session.session import Session


@dataclass(frozen=True)
class Job:
    """What is run for each row: a plan and, to compare with, the plan that decodes the same problem greedily.

    `written` is the plan before any rule changed it, and `planned` says in words which rules did: both identify a run
    that is resumed. A row fails after `row_timeout` seconds. `grader` says whether answers are right. `source` is the
    program's text, for the record of the run. `with_candidates`: what came to the last choice is recorded too.
    With `contents`, digests of the models' files by the models' ids, all samples are recorded too, under these.
    With `trajectories`, too, how each row came to its answer is recorded with its samples. `functions` are the
    program's own, by the names that it has for them; they go before the session's.
    """

    plan: PhysicalPlan
    greedy: PhysicalPlan | None
    seed: int
    with_rows: bool = False
    written: PhysicalPlan | None = None
    planned: str = "optimized"
    row_timeout: float | None = None
    grader: Grader = field(default_factory=EqualAnswer)
    source: str = ""
    with_candidates: bool = False
    contents: Mapping[str, str] | None = None
    trajectories: bool = False
    functions: Mapping[str, PythonFunction] = field(default_factory=dict)

    @classmethod
    def of(cls, prepared: Prepared, seed: int, **more: Any) -> Job:
        """What is run of a prepared program, as its settings say; `more` are other fields."""
        settings = prepared.settings
        own = {"row_timeout": settings.row_timeout, "with_candidates": settings.candidates}
        return cls(
            prepared.plan,
            prepared.greedy,
            seed,
            written=prepared.optimized.naive,
            planned=str(prepared.planning),
            source=prepared.program.text,
            **(own | more),
        )

    @property
    def models(self) -> dict[str, str]:
        """Every model that the plans name."""
        return {**(self.greedy.models if self.greedy else {}), **self.plan.models}


def refuse_effects(plan: PhysicalPlan, functions: Mapping[str, PythonFunction]) -> None:
    """Raises UsageError where a program that is run again and again may call a tool with effects."""
    from qpdsl.executor.runtime.instance.tools import CallableTool

    if any(isinstance(node.op, ops.Tool) for node in everything(plan.ops)):
        for name, tool in functions.items():
            if isinstance(tool, CallableTool) and tool.care == "effects":
                raise UsageError(f"tool `{name}` has effects, and it would be called for each text that is tried")


def refuse_tools(plan: PhysicalPlan) -> None:
    """Raises UsageError where a saved run is asked again of a program that calls tools: it would call them again."""
    if any(isinstance(node.op, ops.Tool) for node in everything(plan.ops)):
        raise UsageError(f"`{plan.name}` calls tools, and to ask its run again would call them again")


# What puts an engine before the one that a row asks.
Through = Callable[["Engine"], "Engine"]


async def run_one(
    session: Session,
    job: Job,
    row: InputRow,
    through: Through | None = None,
    kept: KeptDraws | None = None,
    calls: CallStore | None = None,
) -> tuple[InstanceResult, InstanceResult | None]:
    """What the program and greedy decoding give for one row, run side by side inside `session.running()`.

    The program draws through `kept`, where it is given.
    """
    timeout = job.row_timeout
    program = session.run(
        job.plan,
        row.arguments,
        job.seed,
        row.id,
        functions=job.functions,
        timeout=timeout,
        priority=row.priority,
        candidates=job.with_candidates,
        through=through if kept is None else lambda _: kept,
        kept=kept,
        calls=calls,
    )
    if job.greedy is None:
        return await program, None
    greedy = session.run(
        job.greedy,
        row.arguments,
        job.seed,
        f"{row.id} greedy",
        baseline=True,
        timeout=timeout,
        through=through,
        priority=row.priority,
    )
    return await asyncio.gather(program, greedy)


async def run_row(
    session: Session, job: Job, row: InputRow, through: Through | None = None, calls: CallStore | None = None
) -> Outcome:
    """The outcome of one row, run inside `session.running()`. Greedy decoding is left out where it cannot be graded.

    The row asks the engine that `through` puts before the session's; where there is none, a job records its samples.
    `calls` keeps the calls of tools.
    A row's own failure is part of its outcome, whatever was raised in it. Raises what other rows would meet too.
    """
    compared = job if job.grader.applies(row) else replace(job, greedy=None)
    recorder = None if job.contents is None or through is not None else session.recorder(job.contents)
    kept = None
    if recorder is not None:
        through = recorder.engine
        kept = session.keeper(through) if job.trajectories else None
    try:
        result, greedy = await run_one(session, compared, row, through, kept, calls)
        made = await outcome(row, result, greedy, job.grader, with_rows=job.with_rows)
        if recorder is None:
            return made
        samples = recorder.recorded()
        if kept is not None:
            samples = replace(samples, trajectory=await trajectory_of(session, row.id, result, kept))
        return replace(made, samples=samples.encoded())
    except asyncio.CancelledError as error:
        # A task group takes no notice of tasks that are cancelled, so the row would be missing.
        if _is_cancelled():
            raise
        return _faulty(row, error)
    except (ModelError, EngineError):
        raise
    except Exception as error:
        if meets_every_row(error):
            raise
        return _faulty(row, error)


def _faulty(row: InputRow, fault: BaseException) -> Outcome:
    from qpdsl.executor.runtime.instance.internal_error import internal_error

    failed = Outcome(id=row.id, answer=None, score=None, tokens_in=0, tokens_out=0, near_ties=0, seconds=0.0)
    return replace(failed, error=internal_error(fault))


def _is_cancelled() -> bool:
    """Whether somebody has cancelled the task that runs."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
