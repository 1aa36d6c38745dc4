"""The options of `qpdsl run`, the session that they ask for, and what is said of the models that it loads."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpdsl.cli.console import is_terminal, say
from qpdsl.errors import UsageError
from qpdsl.garbage_collector import collections_paused
from qpdsl.grammar.model_id import is_remote, without_think
from qpdsl.planner.explain.quantities import count, seconds
from qpdsl.session.setting import STDOUT, FilePath, setting
from qpdsl.session.settings import MEASURING, OUTPUT, ROWS, SessionSettings, Settings
from qpdsl.session.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.executor.events.stream import EventStream
    from qpdsl.executor.models.text_model import TextModel
    from qpdsl.planner.cost.timing import RunLoad
    from qpdsl.planner.plan.physical import PhysicalPlan
    from qpdsl.runs.job import Job
    from qpdsl.session.prepare import PlanUse
    from qpdsl.session.session import Session

# A model that is there sooner is not spoken of.
_MOMENT = 1.0
_own = partial(setting, on="run")
_output = partial(_own, heading=OUTPUT)


class LoadNotes:
    """What is told of `models`, the ids of a run's models by name: by `events`, and by notes of what was loaded.

    `quiet`: no notes but those that a user must know. `verbose`: of every model that it was loaded.
    """

    def __init__(self, models: Mapping[str, str], events: EventStream, *, quiet: bool, verbose: bool) -> None:
        self._names: dict[str, list[str]] = {}
        for name, model in models.items():
            self._names.setdefault(model, []).append(name)
        self._events = events
        self._least = math.inf if quiet else 0.0 if verbose else _MOMENT

    def begin(self) -> None:
        """Tells what is about to be loaded."""
        self._tell(", ".join(self._names))

    def slow(self, model: str, what: str) -> None:
        """Tells why the model takes longer than it will the next time."""
        self._tell(f"{', '.join(self._names.get(model, ['a model']))}: {_short(model)} ({what})")

    def loaded(self, model: TextModel, took: float) -> None:
        """Says that a model was loaded, where that took more than a moment; and what is odd of it."""
        if took >= self._least:
            names = ", ".join(self._names.get(model.name, ["a model"]))
            say(f"{names}: {_short(model.name)} ({_made_of(model)}) loaded in {seconds(took)}")
        for note in model.all_notes:
            say(f"note: {note}")

    def _tell(self, what: str) -> None:
        from qpdsl.executor.events.events import Preparing

        self._events.emit(Preparing(step=f"loading {what}"))


def _made_of(model: TextModel) -> str:
    from qpdsl.executor.models.text_model import PagedTextModel

    if isinstance(model, PagedTextModel):
        return f"{model.weights}, {count(model.paged.parameters)} parameters"
    return "on its server"


def _short(model: str) -> str:
    """The last part of an id, and of its adapter's place."""
    return " with ".join(Path(part).name for part in without_think(model).split(" adapter="))


@dataclass(frozen=True, kw_only=True)
class RunOptions(Settings):
    """What `qpdsl run` takes besides the settings of all commands."""

    output: str | None = _output(
        usual=True,
        kind=FilePath(STDOUT),
        metavar="FILE",
        shown="stdout",
        needs="input",
        help="Write the results of --input to FILE, whole or not at all, in the format that its ending says. "
        "The run is saved either way: `qpdsl runs`.",
    )
    json: bool = _output(False, usual=True, help="Print JSON: with --input and --output the summary.")
    rows: bool = _output(
        False,
        usual=True,
        help="Show all final rows with all their columns too, and of one answer what it was chosen from.",
    )
    save_samples: bool = _output(
        False,
        needs="input",
        help="Save every sample, token by token, and every score with the run, for `qpdsl whatif`: some 6 bytes a "
        "token. No vote ends early then, and no text is cut short.",
    )
    save_trajectories: bool = _output(
        False,
        needs="input",
        help="Save for training what --save-samples saves, with every sample's place in the program and the "
        "log-probability of each of its tokens, read again in one pass: `qpdsl runs export --as trl-dpo`, and others.",
    )
    timing: bool = _output(False, usual=True, help="Show seconds, and tokens per second.")
    greedy: bool = _output(True, help="Compare with greedy decoding.")
    resume: bool = _own(
        False,
        usual=True,
        heading=ROWS,
        needs="input",
        help="Continue the unfinished run of the same program, values and rows.",
    )
    reuse: bool = _own(False, heading=ROWS, needs="input", help="Reuse finished rows of earlier runs.")
    analyze: bool = _own(
        False,
        heading=MEASURING,
        alone="it measures this process",
        help="Print actual against estimated cost per operator, and remember it for later plans. No greedy decoding.",
    )

    @property
    def saves_samples(self) -> bool:
        """Whether samples are saved, with whatever else."""
        return self.save_samples or self.save_trajectories

    def check(self) -> None:
        """Raises UsageError where options do not go together."""
        if self.input is not None and self.output is None and self.json:
            raise UsageError(
                "`--json` with `--input` needs `--output`", "without it, stdout has the records as JSON lines"
            )
        if self.overwrite and self.output is None and self.trace is None:
            raise UsageError("`--overwrite` needs `--output` or `--trace`")
        if self.target == "-" and self.input == "-":
            raise UsageError("the program and `--input` cannot both come from standard input")
        super().check()


def plan_use(options: RunOptions) -> PlanUse:
    """What the plan of `qpdsl run` is for."""
    from qpdsl.session.prepare import PlanUse

    return PlanUse(
        rows=options.rows or options.candidates or options.saves_samples,
        text=options.input is None,
        # What is asked of saved samples is planned as `qpdsl eval` plans.
        alone=not options.saves_samples,
        fixed=options.saves_samples,
        # Of one answer the rows are shown with what they were chosen from.
        confidence=options.candidates or options.saves_samples or (options.rows and options.input is None),
        greedy=options.greedy and not options.analyze,
        load=_load(options),
    )


def recording_samples(job: Job, options: RunOptions, contents: Mapping[str, str] | None) -> Job:
    """The job with what `options` say is saved of its samples, under digests of the models' files by their ids."""
    trajectories = options.save_trajectories
    return replace(
        job, contents=contents, trajectories=trajectories, with_candidates=job.with_candidates or trajectories
    )


def _load(options: RunOptions) -> RunLoad:
    """What the plan is for: many problems or one, and the KV memory where the option says it in bytes."""
    from qpdsl.executor.engine.memory.budget import parse
    from qpdsl.planner.cost.timing import RunLoad
    from qpdsl.planner.optimize.by_cost import PROBLEMS

    load = RunLoad(1 if options.input is None else PROBLEMS)
    if options.kv_bytes is None or "%" in str(options.kv_bytes):
        return load
    return replace(load, kv_bytes=parse(options.kv_bytes))


def open_session(options: RunOptions, job: Job, surroundings: Surroundings, events: EventStream) -> Session:
    """A session with the models of a job loaded. Raises ModelError."""
    from qpdsl.runs.graders.judge_program import bind_grader

    plans = [job.plan, *([] if job.greedy is None else [job.greedy])]
    session = loaded_session(
        options.for_plan(job.plan),
        plans,
        surroundings,
        events,
        quiet=options.json or options.quiet,
        verbose=options.verbose,
    )
    bind_grader(job.grader, session)
    return session


def loaded_session(
    settings: SessionSettings,
    plans: Sequence[PhysicalPlan],
    surroundings: Surroundings,
    events: EventStream | None = None,
    *,
    quiet: bool,
    verbose: bool = False,
    **parts: Any,
) -> Session:
    """A session by these settings with the models of plans loaded. Raises ModelError.

    Its notes go to stderr; `parts` are more of what `Session` takes.
    """
    from qpdsl.executor.events.stream import EventStream

    names = {name: model for plan in plans for name, model in plan.models.items()}
    events = EventStream() if events is None else events
    notes = LoadNotes(names, events, quiet=quiet or not is_terminal(sys.stderr), verbose=verbose)
    notes.begin()
    with collections_paused():
        from qpdsl.session.session import Session

    def tell(note: str) -> None:
        say(f"note: {note}")

    functions = surroundings.functions.values()
    session = Session.of(settings, functions=functions, events=events, tell=tell, **parts)
    _load_plans(session, plans, notes)
    return session


def _load_plans(session: Session, plans: Sequence[PhysicalPlan], notes: LoadNotes) -> None:
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
