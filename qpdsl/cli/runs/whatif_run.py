"""One call of `qpdsl whatif`: a saved run, what is changed of it, and its rows, which run over what was saved."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpdsl.cli.console import put, say, width_of
from qpdsl.cli.exits import Exit
from qpdsl.cli.file_guard import Contents, OutputFile
from qpdsl.cli.runs.run_files import guard_of
from qpdsl.cli.runs.whatif_options import WhatifOptions, axes_of, changed, changed_axes, options_of
from qpdsl.cli.shared_options import asking, graded_input, grader_for, policies
from qpdsl.cli.signals import run_until_interrupted
from qpdsl.errors import UsageError
from qpdsl.executor.checkpoint.model_digest import location_digest
from qpdsl.executor.models.unloaded_model import ModelFacts
from qpdsl.grammar.model_id import is_remote
from qpdsl.model_location import own_places
from qpdsl.planner.explain.quantities import exact_plural
from qpdsl.planner.plan.budget_policy import BudgetPolicy
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.values.value import Value
from qpdsl.runs.cells import CellPlanner, PlannedCell, SweptProgram, rows_of_cells
from qpdsl.runs.data.input_row import InputData, NumberedRow, groups_of
from qpdsl.runs.graders.judge_program import bind_grader
from qpdsl.runs.grid import Cell, split_values
from qpdsl.runs.job import Job
from qpdsl.runs.runner import LocalRunner
from qpdsl.runs.store.continuing import policy_of
from qpdsl.runs.store.fingerprint import changes, model_digests, run_fingerprint
from qpdsl.runs.store.recording import is_of
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.whatif import Replay, WhatIf, samples_of, what_if
from qpdsl.runs.whatif_text import begins_whatif, whatif_json_text, whatif_lines
from qpdsl.session.prepare import ask_servers, budgeted, surroundings_of
from qpdsl.session.programs import load_program, named_programs
from qpdsl.session.settings import Settings
from qpdsl.session.surroundings import Surroundings, read_surroundings

if TYPE_CHECKING:
    from qpdsl.session.replaying_session import ReplayingSession

WHATIF = Contents("what a saved run answers", begins_whatif)
_USUAL_WIDTH = 80
# What of a fingerprint decides whether its samples are those that would be drawn now, for any program.
_COMPUTING = ("version", "noise", "python", "device", "dtype", "kv type", "deterministic", "compile")


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """The pipeline of a run as a program of the grid."""

    text: str
    models: frozenset[str]
    target: str = "-e"

    def load(self, surroundings: Surroundings, settings: Iterable[str] = ()) -> LogicalProgram:
        return load_program(None, self.text, None, surroundings, settings)


class WhatifRun:
    """Answers from an open run."""

    def __init__(self, options: WhatifOptions, run: RunFile) -> None:
        self.options = options
        self._run = run
        self._started = options_of(run.record)

    def carry_out(self) -> Exit:
        """Shows what the run answers. Raises UsageError, DataError, QpError and ModelError."""
        if not self._run.samples_size()[0]:
            raise UsageError(
                f"run `{self._run.id}` has no samples", "`qpdsl run … --save-samples` saves them with the run"
            )
        cells = [self._own_cell(), *self._cells()]
        data = self._data(cells)
        output = self._output_file(cells)
        made = self._answered(cells, data)
        self._show(made, output)
        failed = made.evaluation.failed or made.open
        return Exit.ROW_FAILED if failed else Exit.OK

    @cached_property
    def _settings(self) -> Settings:
        return changed(self._started, self.options)

    def _own_cell(self) -> PlannedCell:
        """The run as it was, planned for what is asked of it. Raises UsageError where it would draw other samples."""
        run = replace(self._settings, models=self._started.models, adapters=self._started.adapters)
        settings = replace(run, budget=self._started.budget)
        surroundings = surroundings_of(settings)
        planner = self._planner(settings, surroundings, self._started.budget)
        program = self._program_of_run(surroundings)
        (cell,) = planner.grid(program, axes_of(self._started.assigned))[:1]
        record = self._run.record
        if cell.program.text != record.source:
            raise UsageError(
                f"the program `{record.program}` is another now than in run `{self._run.id}`",
                "`qpdsl runs show RUN --source` prints that of the run; a program in another file can be named",
            )
        models = model_digests(dict[str, str](), lambda: self._session)
        now = run_fingerprint(
            Job.of(cell.prepared, record.seed), cell.values, settings, models=models, python=surroundings.python
        )
        before = {name: value for name, value in record.fingerprint.items() if name in _COMPUTING}
        if differences := changes(before, {name: value for name, value in now.items() if name in _COMPUTING}):
            raise UsageError(
                f"the samples of run `{self._run.id}` are not those that would be drawn now: {', '.join(differences)}"
            )
        return replace(cell, cell=Cell(cell.cell.program, cell.cell.settings, (), "as saved"))

    def _program_of_run(self, surroundings: Surroundings) -> Sequence[SweptProgram]:
        started = self._started
        if started.pipeline is not None:
            return [_Pipeline(started.pipeline, frozenset(surroundings.models))]
        assert started.target is not None
        return named_programs([started.target], surroundings, started.program)

    def _cells(self) -> list[PlannedCell]:
        """The cells of what is asked, planned."""
        options, started = self.options, self._started
        if not (options.targets or options.assigned or options.models or options.budget):
            return []
        settings = self._settings
        if options.targets:
            surroundings = self._known_to(options.targets)
            programs: Sequence[SweptProgram] = named_programs(options.targets, surroundings, options.program)
        else:
            surroundings = surroundings_of(settings)
            programs = self._program_of_run(surroundings)
        known = [name for one in programs for name in _parameters(one.load(surroundings, _models(one, started)))]
        planner = self._planner(settings, surroundings, options.budget or started.budget)
        return planner.grid(programs, changed_axes(started, options, known))

    def _known_to(self, targets: Sequence[str]) -> Surroundings:
        """The surroundings with what the run says of models as far as other programs have them."""
        own, settings = self.options.models, self._settings
        bare = replace(settings, models=(), adapters=())
        names = {name for one in named_programs(targets, surroundings_of(bare), None) for name in one.models}
        asked = {setting.partition("=")[0].strip() for setting in own}
        models = [one for one in settings.models if one.partition("=")[0].strip() in names | asked]
        adapters = [one for one in settings.adapters if one.partition("=")[0].strip() in names]
        return read_surroundings(settings.allow_read, settings.python, models, adapters, settings.drafts)

    def _planner(self, settings: Settings, surroundings: Surroundings, budget: str | None) -> CellPlanner:
        record = self._run.record
        learned = policies(settings, surroundings)

        def policy(program: LogicalProgram, values: Mapping[str, Value]) -> BudgetPolicy | None:
            own = policy_of(record, program)
            return learned(program, values) if own is None else own

        def budgets(program: LogicalProgram) -> dict[str, LogicalProgram]:
            if budget is None:
                return {}
            unit, _, amounts = budget.partition("=")
            written = [f"{unit.strip()}={amount.strip()}" for amount in split_values(amounts, "`--budget`")]
            return {text: budgeted(program, text) for text in written}

        ask = partial(ask_servers, settings=settings, ask=asking(quiet=self.options.form == "json"))
        return CellPlanner(surroundings, settings, False, budgets, policy, ask)

    def _data(self, cells: Sequence[PlannedCell]) -> list[InputData]:
        """The rows of each cell, of which the run has the samples. Raises UsageError where it ran other rows."""
        settings, run = self._settings, self._run
        found = rows_of_cells(cells, lambda cell: graded_input(settings, cell.plan, cell.values))
        saved = {row.number: row for row in run.rows() if row.outcome.failure is None or row.outcome.error is None}
        rows = found[0].rows
        kept = [
            number
            for number, row in enumerate(rows)
            if number in saved and is_of(saved[number], row) and run.samples(number) is not None
        ]
        if not kept:
            raise UsageError(
                f"no row of `{found[0].name}` is one of run `{run.id}` with its samples",
                "the input is another now" if saved else "it has no finished row",
            )
        if len(kept) < len(rows):
            say(
                f"note: {len(kept):,} of {len(rows):,} rows are in run `{run.id}` with their samples; others are left out"
            )
        self._numbers = kept
        return found

    def _answered(self, cells: Sequence[PlannedCell], data: Sequence[InputData]) -> WhatIf:
        options, settings, seed = self.options, self._settings, self._run.record.seed
        surroundings = cells[-1].prepared.bound.surroundings
        grader = grader_for(settings, data[0], surroundings)
        jobs = [Job.of(cell.prepared, seed, grader=grader) for cell in cells]
        replay = Replay(self._run, self._contents(cells), options.draw)
        session = self._opened(cells, surroundings, replay.contents)
        bind_grader(grader, session)
        rows = [
            NumberedRow(number, own.rows[number], place) for place, own in enumerate(data) for number in self._numbers
        ]
        runner = LocalRunner(session, jobs, settings.concurrency, through=replay.through)
        run_until_interrupted(runner.run(rows, replay.done))
        groups = groups_of(data[0].rows, options.by)
        own = None if groups is None else {number: groups[number] for number in self._numbers}
        return what_if(replay, [cell.cell for cell in cells], settings.input or "", by=options.by, groups=own)

    def _contents(self, cells: Sequence[PlannedCell]) -> dict[str, str]:
        """A digest of the files of each model of this machine, by its id."""
        ids = {id for cell in cells for id in cell.plan.models.values() if not is_remote(id)}
        return {id: location_digest(*(place for place, _ in own_places(id))) for id in sorted(ids)}

    def _opened(
        self, cells: Sequence[PlannedCell], surroundings: Surroundings, contents: dict[str, str]
    ) -> ReplayingSession:
        """The session for all cells; what is known of the models without their weights was saved with the samples."""
        from qpdsl.session.replaying_session import ReplayingSession

        known = samples_of(self._run, self._numbers[0]).models
        facts = {id: ModelFacts.from_json(known[content]) for id, content in contents.items() if content in known}
        settings = replace(self._settings, share_samples=self.options.draw and self._settings.shares_samples)
        session = ReplayingSession.of(
            settings, facts=facts, functions=surroundings.functions.values(), tell=lambda note: say(f"note: {note}")
        )
        for cell in cells:
            session.load(cell.plan)
            for name, id in cell.plan.models.items():
                if is_remote(id):
                    contents.update({id: model_digests({name: id}, lambda: session)[name]})
        return session

    def _output_file(self, cells: Sequence[PlannedCell]) -> OutputFile | None:
        if self.options.output is None:
            return None
        models = {name: model for cell in cells for name, model in cell.plan.models.items()}
        surroundings = cells[-1].prepared.bound.surroundings
        targets = self.options.targets or [one for one in (self._started.target,) if one is not None]
        guard = guard_of(self._settings, targets, models, [cell.plan for cell in cells], surroundings)
        guard.reads(self._run.path, "the run")
        place = Path(self.options.output).absolute()
        return guard.writes(place, "`--output`", WHATIF, overwrite=self.options.overwrite)

    def _show(self, made: WhatIf, output: OutputFile | None) -> None:
        for model, count in made.read.items():
            say(f"note: `{model}` was asked about {exact_plural(count, 'text')} that it had not read for the run")
        for model, count in made.drawn.items():
            say(f"note: `{model}` drew {exact_plural(count, 'sample')} that the run has not")
        width = _USUAL_WIDTH if output is not None else width_of(sys.stdout) or _USUAL_WIDTH
        form = self.options.form
        text = whatif_json_text(made)
        if form != "json":
            text = "\n".join(whatif_lines(made, width, markdown=form == "markdown"))
        if output is None:
            put(text)
        else:
            output.write([text])


def _parameters(program: LogicalProgram) -> list[str]:
    return [*(param.name for param in program.params), *program.model_params]


def _models(program: SweptProgram, started: Any) -> list[str]:
    return [setting for setting in started.assigned if setting.partition("=")[0].strip() in program.models]
