"""A sweep from its cells to its table: its files, what is left of it runs, and what is saved is shown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from qpdsl.budgets.policy_for import SavedPolicies
from qpdsl.cli.console import put, say, width_of
from qpdsl.cli.exits import Exit
from qpdsl.cli.file_guard import Contents, OutputFile
from qpdsl.cli.runs.rows_run import RowsRun
from qpdsl.cli.runs.run_files import TRACE, guard_of, name_completions
from qpdsl.cli.runs.run_options import loaded_session
from qpdsl.cli.runs.sweep_options import SweepOptions
from qpdsl.cli.shared_options import asking, graded_input, grader_for, policies
from qpdsl.cli.watched import WatchedProcess
from qpdsl.executor.events.events import CellReached
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.runs.cells import (
    CellPlanner,
    PlannedCell,
    evaluation_of,
    refuse_exit_heads,
    rows_of_cells,
    runs_of_cells,
)
from qpdsl.runs.data.input_row import InputData, groups_of
from qpdsl.runs.evaluation import SweepEvaluation, named_cell
from qpdsl.runs.evaluation_text import begins_evaluation, csv_text, json_text, markdown_lines, text_lines, to_json
from qpdsl.runs.experiment_log import tracker
from qpdsl.runs.grid import read_axes, split_values
from qpdsl.runs.job import Job
from qpdsl.runs.plots import begins_plot, svg
from qpdsl.runs.store.continuing import CellRun, SavedCells
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.summary import grader_failed
from qpdsl.runs.sweep import Sweep
from qpdsl.session.budget_option import budgeted
from qpdsl.session.prepare import ask_servers
from qpdsl.session.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.session.session import Session

EVALUATION = Contents("the table of a sweep", begins_evaluation)
PLOT = Contents("a plot of qpdsl", begins_plot)

_USUAL_WIDTH = 80


@dataclass(frozen=True, slots=True)
class SweepFiles:
    """The files to write, None where none was asked for; `form` is the format of the output."""

    output: OutputFile | None
    plot: OutputFile | None
    trace: OutputFile | None
    form: str


def sweep_files(options: SweepOptions, cells: Sequence[PlannedCell], surroundings: Surroundings) -> SweepFiles:
    """The files that the options name, none of them touched yet. Raises UsageError and DataError."""
    models = {name: model for cell in cells for name, model in cell.plan.models.items()}
    guard = guard_of(options, options.targets, models, [cell.plan for cell in cells], surroundings)
    output, plot, trace = (
        None if name is None else guard.writes(Path(name).absolute(), option, contents, overwrite=options.overwrite)
        for name, option, contents in (
            (options.output, "`--output`", EVALUATION),
            (options.plot, "`--plot`", PLOT),
            (options.trace, "`--trace`", TRACE),
        )
    )
    name_completions(guard, options)
    return SweepFiles(output, plot, trace, options.file_form)


def planned_cells(
    options: SweepOptions, surroundings: Surroundings, process: WatchedProcess | None = None
) -> list[PlannedCell]:
    """Every cell of the grid, planned. Raises UsageError and QpError."""
    kept = SavedPolicies() if options.fresh else SavedPolicies.of(info.record for info in RunFolder().infos())
    policy = kept.before(policies(options, surroundings))

    def budgets(program: LogicalProgram) -> dict[str, LogicalProgram]:
        """The program under each budget of `--budget`, by how that is written."""
        if options.budget is None:
            return {}
        unit, _, amounts = options.budget.partition("=")
        written = [f"{unit.strip()}={amount.strip()}" for amount in split_values(amounts, "`--budget`")]
        return {text: budgeted(program, text) for text in written}

    ask = partial(ask_servers, settings=options, tell=asking(process))
    planner = CellPlanner(surroundings, options, options.ways, budgets, policy, ask)
    cells = planner.cells(options.targets, read_axes(options.assigned), options.program)
    if options.budget is not None and not any(cell.program.ways for cell in cells):
        budgeted(cells[0].program, options.budget)
    if options.exit_heads:
        refuse_exit_heads(cells)
    return cells


class SweepRun(RowsRun[SweepOptions]):
    """One call of `qpdsl eval`: its cells and files."""

    def __init__(
        self,
        process: WatchedProcess,
        options: SweepOptions,
        cells: Sequence[PlannedCell],
        surroundings: Surroundings,
        files: SweepFiles,
        command: Sequence[str],
    ) -> None:
        super().__init__(process, options, surroundings)
        self._cells, self._files, self._command = cells, files, command
        self._logs = [tracker(target) for target in options.log]

    def run(self) -> None:
        options = self.options
        if options.baseline is not None:
            named_cell([cell.cell for cell in self._cells], options.baseline)
        data = self._data()
        groups_of(data[0].rows, options.by)
        runs = self._runs(data)
        folder = RunFolder()
        saved = SavedCells(folder) if options.fresh else SavedCells.of(folder)
        self.process.record(self._files.trace)
        self.sweep = Sweep(runs, saved.open, saved.whole, self.rows_saved)
        self.sweep.run(self.runner, self.drive)

    def _data(self) -> list[InputData]:
        """The rows of each cell, which are those of the same records."""
        found = rows_of_cells(self._cells, lambda cell: graded_input(self.options, cell.plan, cell.values))
        for note in dict.fromkeys(note for data in found for note in data.notes):
            say(note)
        return found

    def _runs(self, data: Sequence[InputData]) -> list[CellRun]:
        """One run for every seed and cell, the seeds one after another."""
        options = self.options
        grader = grader_for(options, data[0], self.surroundings)

        def job(cell: PlannedCell, seed: int) -> Job:
            return Job.of(cell.prepared, seed, grader=grader)

        def python(cell: PlannedCell) -> str:
            return self.surroundings.python

        self.process.prepare("reading the models' files")
        seeds = range(options.seeds)
        return runs_of_cells(self._cells, data, seeds, job, self.open_session, options, python, self._command)

    def report(self) -> Exit:
        assert self.sweep is not None
        options = self.options
        self.tell_cells(self.progress.all())
        if self.sweep.ended:
            self._say_rows(self.sweep)
        input = options.input or self.sweep.runs[0].data.name
        made = evaluation_of(self.sweep, input, range(options.seeds), baseline=options.baseline, by=options.by)
        self._say_failures(self.sweep)
        self._show(made)
        return Exit.ROW_FAILED if made.failed else Exit.OK

    def open_session(self) -> Session:
        """The one session for all cells, which share weights, prefixes, scores and samples."""
        if self.session is None:
            plans, options = [cell.plan for cell in self._cells], self.options
            how = {"quiet": options.form == "json" or options.quiet, "verbose": options.verbose}
            settings = self.settings().for_steps(plans)
            self.session = loaded_session(settings, plans, self.surroundings, self.events, **how)
        return self.session

    def tell_cells(self, cells: Sequence[CellReached]) -> None:
        for cell in cells:
            self.events.emit(cell)

    def settings(self) -> SweepOptions:
        return replace(self.options, share_samples=self._can_share)

    def resumption(self, more: str = "") -> str | None:
        with_more = f", with {more}," if more else ""
        return f"finished rows are saved; the same command{with_more} goes on from there"

    @cached_property
    def _can_share(self) -> bool:
        if not self.options.shares_samples:
            say("note: here samples can depend on what is computed beside them, so that cells share none")
        return self.options.shares_samples

    def _say_rows(self, sweep: Sweep) -> None:
        """Says what this call has done, which the table does not depend on."""
        saved = sweep.total - sweep.ended
        facts = [f"{sweep.ended:,} rows in {self.seconds:.1f} s"]
        if saved:
            facts.append(f"{saved:,} were there")
        if sweep.shared:
            share = sweep.shared / sweep.sampled
            facts.append(f"{sweep.shared:,} of {sweep.sampled:,} sampled tokens ({share:.0%}) were shared, not drawn")
        say(f"note: {'; '.join(facts)}")
        self.say_calls()
        if self.replicas is not None:
            self.replicas.tell()

    def _show(self, made: SweepEvaluation) -> None:
        if self._files.output is None:
            put(_written(made, self.options.form, width_of(sys.stdout) or _USUAL_WIDTH))
        else:
            self._files.output.write([_written(made, self._files.form, _USUAL_WIDTH)])
            if not self.options.quiet:
                say(_written(made, "text", width_of(sys.stderr) or _USUAL_WIDTH))
            say(f"note: wrote `{self.options.output}`")
        # The table is there, whatever becomes of the picture.
        if self._files.plot is not None:
            self._files.plot.write([svg(made.scatter())])
            say(f"note: wrote `{self.options.plot}`")
        for log in self._logs:
            log(to_json(made))

    def _say_failures(self, sweep: Sweep) -> None:
        """Says how many rows failed, and how to have them again."""
        outcomes = [outcome for rows in sweep.outcomes.values() for outcome in rows.values()]
        misgraded = [outcome for outcome in outcomes if outcome.grader_error is not None]
        if failed := sum(outcome.failure is not None for outcome in outcomes) - len(misgraded):
            rows, them = ("1 row", "it") if failed == 1 else (f"{failed:,} rows", "them")
            say(f"note: {rows} failed; `qpdsl runs show` says why, `--fresh` runs {them} again")
        if misgraded:
            first = min(misgraded, key=lambda outcome: outcome.id)
            why = f"row `{first.id}`: {first.grader_error}"
            say(f"warning: {grader_failed(len(misgraded))}; the same command grades again; {why}")


def _written(made: SweepEvaluation, form: str, width: int) -> str:
    match form:
        case "json":
            return json_text(made)
        case "csv":
            return csv_text(made)
        case "markdown":
            return "\n".join(markdown_lines(made))
    return "\n".join(text_lines(made, width))
