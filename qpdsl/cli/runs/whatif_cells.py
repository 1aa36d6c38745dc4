"""What is asked of a saved run as the cells of a grid: the run itself, and its programs with other values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from qpdsl.cli.runs.recorded_options import name_of
from qpdsl.cli.runs.run_options import RunOptions
from qpdsl.cli.runs.whatif_options import WhatifOptions, axes_of, changed, changed_axes
from qpdsl.cli.shared_options import asking, policies
from qpdsl.errors import UsageError
from qpdsl.planner.plan.budget_policy import BudgetPolicy
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.values.value import Value
from qpdsl.runs.cells import CellPlanner, PlannedCell, SweptProgram
from qpdsl.runs.grid import Cell, read_axes, split_values
from qpdsl.runs.job import Job
from qpdsl.runs.store.continuing import policy_of
from qpdsl.runs.store.fingerprint import changes, run_fingerprint
from qpdsl.runs.store.run_file import RunFile
from qpdsl.session.budget_option import budgeted
from qpdsl.session.prepare import ask_servers, surroundings_of
from qpdsl.session.programs import load_program, named_programs, program_names, program_path
from qpdsl.session.settings import Settings
from qpdsl.session.surroundings import Surroundings, read_surroundings

# What of a fingerprint decides whether its samples are those that would be drawn now, for any program.
_COMPUTING = ("version", "noise", "python", "device", "dtype", "kv type", "deterministic")


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """The pipeline of a run as a program of the grid."""

    text: str
    models: frozenset[str]
    target: str = "-e"

    def load(self, surroundings: Surroundings, settings: Iterable[str] = ()) -> LogicalProgram:
        return load_program(None, self.text, None, surroundings, settings)


@dataclass(frozen=True)
class WhatifCells:
    """Plans what is asked of a run, of which `started` is the command line. `settings` are those of what is asked."""

    options: WhatifOptions
    run: RunFile
    started: RunOptions

    @property
    def settings(self) -> Settings:
        return changed(self.started, self.options)

    def own_cell(self) -> PlannedCell:
        """The run as it was, planned for what is asked of it. Raises UsageError where it would draw other samples."""
        run = replace(self.settings, models=self.started.models, adapters=self.started.adapters)
        settings = replace(run, budget=self.started.budget)
        surroundings = surroundings_of(settings)
        planner = self._planner(settings, surroundings, self.started.budget)
        program = self._program_of_run(surroundings)
        (cell,) = planner.grid(program, axes_of(self.started.assigned))[:1]
        record = self.run.record
        if cell.program.text != record.source:
            raise UsageError(
                f"the program `{record.program}` is another now than in run `{self.run.id}`",
                "`qpdsl runs show RUN --source` prints that of the run; a program in another file can be named",
            )
        job = Job.of(cell.prepared, record.seed)
        now = run_fingerprint(job, cell.values, settings, python=surroundings.python)
        before = {name: value for name, value in record.fingerprint.items() if name in _COMPUTING}
        if differences := changes(before, {name: value for name, value in now.items() if name in _COMPUTING}):
            raise UsageError(
                f"the samples of run `{self.run.id}` are not those that would be drawn now: {', '.join(differences)}"
            )
        return replace(cell, cell=Cell(cell.cell.program, cell.cell.settings, (), "as saved"))

    def _program_of_run(self, surroundings: Surroundings) -> Sequence[SweptProgram]:
        started = self.started
        if started.pipeline is not None:
            return [_Pipeline(started.pipeline, frozenset(surroundings.models))]
        assert started.target is not None
        return named_programs([started.target], surroundings, started.program)

    def asked_cells(self) -> list[PlannedCell]:
        """The cells of what is asked, planned."""
        options, started = self.options, self.started
        if not (options.targets or options.assigned or options.models or options.budget):
            return []
        settings = self.settings
        if options.targets:
            self._check_targets()
            surroundings = self._known_to(options.targets)
            programs: Sequence[SweptProgram] = named_programs(options.targets, surroundings, options.program)
        else:
            surroundings = surroundings_of(settings)
            programs = self._program_of_run(surroundings)
        known = [name for one in programs for name in _parameters(one.load(surroundings, _models(one, started)))]
        planner = self._planner(settings, surroundings, options.budget or started.budget)
        asked = {axis.name for axis in read_axes(options.assigned)}
        return [
            replace(planned, cell=self._told(planned.cell, asked))
            for planned in planner.grid(programs, changed_axes(started, options, known))
        ]

    def _check_targets(self) -> None:
        """Raises UsageError where a program of the run's file is named without the file."""
        file = self.started.target
        if file is None or file == "-" or not Path(file).is_file():
            return
        for target in self.options.targets:
            if program_path(target) == Path(target) and not Path(target).exists() and target in program_names(file):
                raise UsageError(
                    f"`{target}` is a program of `{file}`, not a file",
                    f"`qpdsl whatif {self.options.run} {file} --program {target}`",
                )

    def _told(self, cell: Cell, asked: Collection[str]) -> Cell:
        """A cell that says all that was changed."""
        varied = tuple(name for name, _ in cell.settings if name in asked)
        return replace(cell, varied=varied, choice=" ".join(filter(None, (cell.choice, *self.options.models))))

    def _known_to(self, targets: Sequence[str]) -> Surroundings:
        """The surroundings with what the run says of models as far as other programs have them."""
        own, settings = self.options.models, self.settings
        bare = replace(settings, models=(), adapters=())
        names = {name for one in named_programs(targets, surroundings_of(bare), None) for name in one.models}
        asked = {name_of(setting) for setting in own}
        models = [one for one in settings.models if name_of(one) in names | asked]
        adapters = [one for one in settings.adapters if name_of(one) in names]
        return read_surroundings(
            settings.allow_read, settings.python, models, adapters, settings.drafts, tools=settings.tools
        )

    def _planner(self, settings: Settings, surroundings: Surroundings, budget: str | None) -> CellPlanner:
        record = self.run.record
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

        ask = partial(ask_servers, settings=settings, tell=asking())
        return CellPlanner(surroundings, settings, False, budgets, policy, ask)


def _parameters(program: LogicalProgram) -> list[str]:
    return [*(param.name for param in program.params), *program.model_params]


def _models(program: SweptProgram, started: RunOptions) -> list[str]:
    return [setting for setting in started.assigned if name_of(setting) in program.models]
