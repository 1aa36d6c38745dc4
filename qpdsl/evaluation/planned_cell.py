"""A cell of a sweep, ready to run: its program with its values, and the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from qpdsl.arguments import ArgumentError, parse_settings, with_defaults
from qpdsl.dataset.job import Job
from qpdsl.errors import UsageError
from qpdsl.evaluation.grid import MOST_CELLS, Axis, Cell, cells_of
from qpdsl.grammar.words import WithinLevel
from qpdsl.measures.grader import Grader
from qpdsl.planner.budget.budget_policy import BudgetPolicy
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.value import Value
from qpdsl.planner.ways.open_program import fixed, ways_of
from qpdsl.planning.planning import Planning, reads_of
from qpdsl.planning.target import Target
from qpdsl.sources.programs import permitting
from qpdsl.sources.several_programs import distinct_names, named_programs
from qpdsl.sources.surroundings import Surroundings
from qpdsl.stage_options import check_options


class SweptProgram(Protocol):
    """A program of a sweep, which is loaded for each of its cells.

    `target` names its file, where another program has the same name, and `models` are the names of its models.
    """

    @property
    def target(self) -> str: ...

    @property
    def models(self) -> frozenset[str]: ...

    def load(self, surroundings: Surroundings, settings: Iterable[str] = ()) -> LogicalProgram:
        """The program, checked; `settings` are `NAME=ID` strings for parameters that are models."""


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell with its checked program, the values that hold for all rows, and its plan before and after the rules."""

    cell: Cell
    program: LogicalProgram
    values: Mapping[str, Value]
    written: PhysicalPlan
    plan: PhysicalPlan
    planned: str

    @property
    def loses(self) -> bool:
        """Whether its plan may give other tokens than the program as it is written."""
        return _loses(self.program)

    def job(self, seed: int, grader: Grader, row_timeout: float | None = None, *, candidates: bool = False) -> Job:
        """What is run for each row: the program alone, which greedy decoding is not compared with."""
        return Job(
            self.plan,
            None,
            seed,
            written=self.written,
            planned=self.planned,
            row_timeout=row_timeout,
            grader=grader,
            source=self.program.text,
            with_candidates=candidates,
        )


@dataclass(frozen=True)
class CellPlanner:
    """Plans the cells of a sweep, for which nothing is loaded.

    `within` holds for programs that say nothing. With `candidates` the plans keep the columns of the rows that the last
    choice is among. Of a program that leaves something open `budgets` gives it under each budget that was asked for, by
    how that is written, and `policy` what it decides by under one, from its values. Without a budget, and with `ways`,
    each of its ways is a cell.
    """

    surroundings: Surroundings
    planning: Planning
    target: Target
    within: WithinLevel | None = None
    candidates: bool = False
    ways: bool = False
    budgets: Callable[[LogicalProgram], Mapping[str, LogicalProgram]] = lambda program: {}
    policy: Callable[[LogicalProgram, Mapping[str, Value]], BudgetPolicy | None] = lambda program, values: None

    def cells(self, targets: Sequence[str], axes: Sequence[Axis], program: str | None = None) -> list[PlannedCell]:
        """Every cell of the grid of these programs and axes; `program` chooses among those of a file.

        Raises UsageError and QpError.
        """
        return self.grid(named_programs(targets, self.surroundings, program), axes)

    def grid(self, found: Sequence[SweptProgram], axes: Sequence[Axis]) -> list[PlannedCell]:
        """Every cell of the grid of some programs. Raises UsageError and QpError."""
        models = _settings((axis.name, axis.values[0]) for axis in axes)
        # Parameters do not depend on which models a program has, so those of the first values say what there is.
        loaded = [(one.target, one.load(self.surroundings, _model_settings(one, models))) for one in found]
        names = distinct_names(loaded)
        by_name = dict(zip(names, found, strict=True))
        params = {
            name: [param.name for param in own.params] + list(own.model_params)
            for name, (_, own) in zip(names, loaded, strict=True)
        }
        cells = cells_of(params, axes)
        planned = [one for cell in cells for one in self._of(cell, by_name[cell.program])]
        if len(planned) > MOST_CELLS:
            raise UsageError(f"the grid has more than {MOST_CELLS:,} cells", "leave out some values")
        return planned

    def _of(self, cell: Cell, named: SweptProgram) -> Iterator[PlannedCell]:
        """The cell, or one for every budget or way of a program that leaves something open."""
        settings = _settings(cell.settings)
        program = permitting(named.load(self.surroundings, _model_settings(named, settings)), self.within)
        try:
            values = parse_settings(program.params, settings, program.name, program.model_params)
            program = with_defaults(program, values)
            for choice, own in self._choices(program):
                yield self._planned(replace(cell, choice=choice), own, values)
        except ArgumentError as error:
            raise UsageError(f"{cell.name}: {error}") from error

    def _choices(self, program: LogicalProgram) -> Iterator[tuple[str, LogicalProgram]]:
        if not program.ways:
            yield "", program
            return
        budgets = self.budgets(program)
        if not budgets and program.budget is not None and not self.ways:
            budgets = {f"{program.budget.unit}={program.budget.amount:g}": program}
        if self.ways or not budgets:
            yield from ((way.name, fixed(program, way)) for way in ways_of(program))
        yield from budgets.items()

    def _planned(self, cell: Cell, program: LogicalProgram, values: Mapping[str, Value]) -> PlannedCell:
        planning = self.planning
        if _loses(program):
            # By what was measured until then, another plan could be chosen when the sweep goes on, with other tokens.
            planning = planning.without_choice()
        policy = self.policy(program, values) if program.ways else None
        reads = reads_of(program, rows=self.candidates)
        # The KV, and so its type, is the same for all cells. No vote ends early: how many samples it takes then depends
        # on which come first, and a table is to be the same each time.
        optimized = planning.optimized(program, reads, self.target, kv_types=False, support=True, policy=policy)
        check_options(optimized.plan, values)
        return PlannedCell(cell, program, values, optimized.naive, optimized.plan, str(planning))


def refuse_exit_heads(cells: Iterable[PlannedCell]) -> None:
    """Raises UsageError for a cell that exit heads of the session would give another plan."""
    for cell in cells:
        if cell.loses:
            message = (
                f"a sweep goes on with the same plans, and for `{cell.cell.name}` `--exit-head` may lead to others"
            )
            raise UsageError(message, "write the early exit into the program: `via amortized(…)`")


def _loses(program: LogicalProgram) -> bool:
    """Whether a program permits plans that give other tokens."""
    return program.within is not None and program.within.level in ("epsilon", "loss")


def _settings(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{name}={value}" for name, value in pairs]


def _model_settings(named: SweptProgram, settings: Iterable[str]) -> list[str]:
    """Those of `NAME=VALUE` strings that are for models of the program."""
    return [setting for setting in settings if setting.partition("=")[0] in named.models]
