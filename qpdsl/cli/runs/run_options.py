"""The options of `qpdsl run`, and the session that they ask for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qpdsl.cli.options.budget_options import BudgetOptions
from qpdsl.cli.options.cluster_options import ClusterOptions
from qpdsl.cli.options.grading_options import GradingOptions
from qpdsl.cli.options.input_options import InputOptions
from qpdsl.cli.options.session_options import SessionOptions
from qpdsl.cli.runs.load_notes import LoadNotes
from qpdsl.garbage_collector import collections_paused
from qpdsl.grammar.model_id import is_remote
from qpdsl.run_store.fingerprint import Computing
from qpdsl.sources.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.dataset.job import Job
    from qpdsl.executor.events.stream import EventStream
    from qpdsl.planner.plan.physical import PhysicalPlan
    from qpdsl.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(BudgetOptions, GradingOptions, InputOptions, ClusterOptions, SessionOptions):
    """The options as the user set them; `cli.commands.run` says what each means."""

    target: str | None
    pipeline: str | None
    output: str | None
    seed: int
    json: bool
    rows: bool
    timing: bool
    resume: bool
    reuse: bool
    overwrite: bool
    concurrency: int | None
    row_timeout: float | None
    greedy: bool
    trace: str | None
    tui: bool
    analyze: bool
    router: str | None
    record_routes: str | None
    shadow: float | None
    statistics: bool

    @property
    def computing(self) -> Computing:
        """What the results depend on of what the options ask for."""
        return Computing(
            device=self.device,
            dtype=self.dtype,
            kv_type=self.kv_type,
            router=self.router,
            deterministic=self.deterministic,
            compile=self.compile,
        )


def open_session(options: RunOptions, job: Job, surroundings: Surroundings, events: EventStream) -> Session:
    """A session with the models of a job loaded. Raises ModelError."""
    notes = LoadNotes(job.models, quiet=options.json)
    notes.begin()
    with collections_paused():
        from qpdsl.measures.graders.judge_program import bind_grader
        from qpdsl.session import Session

    session = Session(
        **{**options.settings_of_session, "kv_type": options.kv_type or job.plan.kv_type},
        functions=surroundings.functions.values(),
        events=events,
        router=options.router,
        record_routes=options.record_routes is not None,
        shadow=options.shadow,
    )
    load_plans(session, [job.plan, *([] if job.greedy is None else [job.greedy])], notes)
    bind_grader(job.grader, session)
    return session


def load_plans(session: Session, plans: Sequence[PhysicalPlan], notes: LoadNotes) -> None:
    """Loads the models of plans into a session, and tells its events. Raises ModelError."""
    start = time.monotonic()
    from qpdsl.executor.checkpoint.errors import ModelError
    from qpdsl.executor.events.events import ModelsLoaded
    from qpdsl.model_location import locate

    models = list(dict.fromkeys(model for plan in plans for model in plan.models.values()))
    try:
        for plan in plans:
            session.load(plan, notes.loaded, notes.slow)
    except ModelError as error:
        for model in models:
            lead = str(ModelError(model, ""))
            if str(error).startswith(lead) and not is_remote(model) and not isinstance(locate(model), Path):
                why = str(error).removeprefix(lead)
                raise ModelError(model, f"looked up as a hub id, as there is no such folder: {why}") from error
        raise
    session.events.emit(ModelsLoaded(models=tuple(models), seconds=time.monotonic() - start))
