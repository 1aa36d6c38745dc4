"""The options of `qpdsl run`, and the session that they ask for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qpdsl.cli.runs.load_notes import LoadNotes
from qpdsl.cli.runs.session_options import SessionOptions
from qpdsl.garbage_collector import collections_paused
from qpdsl.grammar.model_id import is_remote
from qpdsl.sources.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.dataset.job import Job
    from qpdsl.executor.events.stream import EventStream
    from qpdsl.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(SessionOptions):
    """The options as the user set them; `cli.commands.run` says what each means."""

    target: str | None
    pipeline: str | None
    input: str | None
    output: str | None
    seed: int
    json: bool
    rows: bool
    timing: bool
    resume: bool
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


def open_session(options: RunOptions, job: Job, surroundings: Surroundings, events: EventStream) -> Session:
    """A session with the models of a job loaded. Raises ModelError."""
    start = time.monotonic()
    notes = LoadNotes(job.models, quiet=options.json)
    notes.begin()
    from qpdsl.executor.checkpoint.errors import ModelError
    from qpdsl.executor.events.events import ModelsLoaded
    from qpdsl.model_location import locate

    with collections_paused():
        from qpdsl.session import Session

    session = Session(
        **{**options.settings_of_session, "kv_type": options.kv_type or job.plan.kv_type},
        functions=surroundings.functions.values(),
        events=events,
        router=options.router,
        record_routes=options.record_routes is not None,
        shadow=options.shadow,
    )
    try:
        session.load(job.plan, notes.loaded, notes.slow)
        if job.greedy is not None:
            session.load(job.greedy, notes.loaded, notes.slow)
    except ModelError as error:
        for model in job.models.values():
            lead = str(ModelError(model, ""))
            if str(error).startswith(lead) and not is_remote(model) and not isinstance(locate(model), Path):
                why = str(error).removeprefix(lead)
                raise ModelError(model, f"looked up as a hub id, as there is no such folder: {why}") from error
        raise
    events.emit(ModelsLoaded(models=tuple(dict.fromkeys(job.models.values())), seconds=time.monotonic() - start))
    return session
