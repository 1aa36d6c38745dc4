"""The options of `qpdsl eval`, and the runs that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qpdsl.cli.console import say
from qpdsl.cli.options.budget_options import BudgetOptions, policy_of
from qpdsl.cli.options.cluster_options import ClusterOptions
from qpdsl.cli.options.grading_options import GradingOptions
from qpdsl.cli.options.input_options import InputOptions, read_input
from qpdsl.cli.options.session_options import SessionOptions
from qpdsl.dataset.job import Job
from qpdsl.errors import UsageError
from qpdsl.evaluation.grid import read_axes
from qpdsl.evaluation.kept_cells import CellRun
from qpdsl.evaluation.kept_policies import KeptPolicies
from qpdsl.evaluation.planned_cell import CellPlanner, PlannedCell, refuse_exit_heads
from qpdsl.evaluation.sweep_runs import rows_of_cells, runs_of_cells
from qpdsl.evaluation.value_lists import split_values
from qpdsl.inputs.input_row import InputData
from qpdsl.planner.budget.budget_policy import BudgetPolicy
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.values.value import Value
from qpdsl.planning.exit_heads import exit_heads_of
from qpdsl.planning.planning import Planning
from qpdsl.planning.target import Target
from qpdsl.run_store.fingerprint import Computing
from qpdsl.run_store.run_folder import RunFolder
from qpdsl.settings import check_memory, check_threads, check_timeout
from qpdsl.sources.surroundings import Surroundings
from qpdsl.stage_options import check_code

if TYPE_CHECKING:
    from qpdsl.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions(BudgetOptions, GradingOptions, InputOptions, ClusterOptions, SessionOptions):
    """The options as the user set them; `cli.commands.eval` says what each means."""

    targets: tuple[str, ...]
    seeds: int
    ways: bool
    form: str
    output: str | None
    plot: str | None
    baseline: str | None
    fresh: bool
    overwrite: bool
    concurrency: int | None
    row_timeout: float | None

    def check(self) -> None:
        """Raises UsageError where the options do not go together."""
        if self.input is None:
            raise UsageError("a sweep needs `--input`, the rows that every cell runs")
        if self.input == "-":
            raise UsageError("`--input -` can be read once, and a sweep reads its rows for every cell", "give a file")
        if self.overwrite and self.output is None and self.plot is None:
            raise UsageError("`--overwrite` needs `--output` or `--plot`")
        self.check_input()
        self.check_grading(has_input=True)
        self.check_cluster()
        self.check_spending()
        check_timeout(self.row_timeout)
        check_threads(self.threads)
        check_memory(self.kv_memory, self.device)

    def cells(self, surroundings: Surroundings) -> list[PlannedCell]:
        """Every cell of the grid, planned. Raises UsageError and QpError."""
        planning = Planning.of(self.plan_kind, self.disabled)
        target = Target(self.device, self.dtype, self.threads, None, tuple(exit_heads_of(self.exit_heads).items()))
        kept = KeptPolicies() if self.fresh else KeptPolicies.of(info.record for info in RunFolder().infos())

        def policy(program: LogicalProgram, values: Mapping[str, Value]) -> BudgetPolicy | None:
            known = kept.policy(program, values)
            return known or policy_of(program, values, self.computing, str(planning), surroundings.python)

        planner = CellPlanner(
            surroundings,
            planning,
            target,
            within=self.within,
            candidates=self.candidates,
            ways=self.ways,
            budgets=self.budgets,
            policy=policy,
        )
        cells = planner.cells(self.targets, read_axes(self.settings), self.program)
        if self.budget is not None and not any(cell.program.ways for cell in cells):
            self.budgeting(cells[0].program)
        if self.exit_heads:
            refuse_exit_heads(cells)
        for cell in cells:
            check_code(cell.plan, allowed=self.allow_code)
        return cells

    @property
    def computing(self) -> Computing:
        """What the results depend on of what the options ask for."""
        return Computing(
            device=self.device,
            dtype=self.dtype,
            kv_type=self.kv_type,
            deterministic=self.deterministic,
            compile=self.compile,
        )

    def budgets(self, program: LogicalProgram) -> dict[str, LogicalProgram]:
        """A program that leaves something open under each budget of `--budget`, by how that is written.

        Raises UsageError.
        """
        if self.budget is None:
            return {}
        unit, _, amounts = self.budget.partition("=")
        written = [f"{unit.strip()}={amount.strip()}" for amount in split_values(amounts, "`--budget`")]
        return {text: replace(self, budget=text).budgeting(program) for text in written}

    def data(self, cells: Sequence[PlannedCell]) -> list[InputData]:
        """The rows of each cell, which are those of the same records.

        Raises DataError, and UsageError also where cells are equal as the rows have what `--set` varies.
        """
        found = rows_of_cells(cells, lambda cell: read_input(self, cell.plan, cell.values, self.used_fields))
        for note in dict.fromkeys(note for data in found for note in data.notes):
            say(note)
        return found

    def runs(
        self,
        cells: Sequence[PlannedCell],
        data: Sequence[InputData],
        surroundings: Surroundings,
        session: Callable[[], Session],
        command: Sequence[str],
    ) -> list[CellRun]:
        """One run for every seed and cell, the seeds one after another.

        `session` opens the session where files alone do not tell what a model is; `command` is the command line.
        """
        grader = self.grader_for(data[0], surroundings, allow_code=self.allow_code)

        def job(cell: PlannedCell, seed: int) -> Job:
            return cell.job(seed, grader, self.row_timeout, candidates=self.candidates)

        python = surroundings.python
        return runs_of_cells(cells, data, range(self.seeds), job, session, self.computing, lambda cell: python, command)
