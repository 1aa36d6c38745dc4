"""The cells of a sweep: each a program with its values and its plan; their rows, and a run for each seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from qpdsl.arguments import ArgumentError, parse_settings, with_defaults
from qpdsl.errors import DataError, UsageError
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.strategies.written_strategies import fixed, strategies_of
from qpdsl.planner.values.value import Value
from qpdsl.runs.data.input_row import InputData, groups_of
from qpdsl.runs.evaluation import SweepEvaluation, evaluation
from qpdsl.runs.grid import MAX_CELLS, Axis, Cell, cells_of
from qpdsl.runs.job import Job
from qpdsl.runs.store.continuing import CellRun
from qpdsl.runs.store.fingerprint import digest, model_digests
from qpdsl.runs.sweep import Sweep
from qpdsl.session.budget_option import budget_option
from qpdsl.session.prepare import BoundProgram, PlanUse, Policies, Prepared, loses, prepare
from qpdsl.session.programs import distinct_names, named_programs, permitting
from qpdsl.session.settings import SessionSettings, Settings
from qpdsl.session.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
    from qpdsl.runs.job import Job
    from qpdsl.session.session import Session


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
    """A cell with its program, bound to the values that hold for all rows, and planned."""

    cell: Cell
    prepared: Prepared

    @property
    def program(self) -> LogicalProgram:
        return self.prepared.program

    @property
    def values(self) -> Mapping[str, Value]:
        return self.prepared.values

    @property
    def plan(self) -> PhysicalPlan:
        return self.prepared.plan


@dataclass(frozen=True)
class CellPlanner:
    """Plans the cells of a sweep, for which nothing is loaded.

    Of a program that leaves something open `budgets` gives it under each budget that was asked for, by how that is
    written, and `policy` what it decides by under one, from its values. Without a budget, and with `ways`, each of its
    ways is a cell. `ask` has the answers of the programs' servers.
    """

    surroundings: Surroundings
    settings: Settings
    ways: bool = False
    budgets: Callable[[LogicalProgram], Mapping[str, LogicalProgram]] = lambda program: {}
    policy: Policies = lambda program, values: None
    ask: Callable[[Sequence[BoundProgram]], Mapping[str, ServerCapabilities]] = lambda bound: {}

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
        bound = [one for cell in cells_of(params, axes) for one in self._of(cell, by_name[cell.program])]
        if len(bound) > MAX_CELLS:
            raise UsageError(f"the grid has more than {MAX_CELLS:,} cells", "leave out some values")
        servers = self.ask([program for _, program in bound])
        return [self._planned(cell, program, servers) for cell, program in bound]

    def _of(self, cell: Cell, named: SweptProgram) -> Iterator[tuple[Cell, BoundProgram]]:
        """The cell, or one for every budget or way of a program that leaves something open."""
        settings = _settings(cell.settings)
        program = permitting(named.load(self.surroundings, _model_settings(named, settings)), self.settings.within)
        with _naming(cell):
            values = parse_settings(program.params, settings, program.name, program.model_params)
        for choice, own in self._choices(with_defaults(program, values)):
            yield replace(cell, choice=choice), BoundProgram(own, values, self.surroundings)

    def _choices(self, program: LogicalProgram) -> Iterator[tuple[str, LogicalProgram]]:
        if not program.ways:
            yield "", program
            return
        budgets = self.budgets(program)
        if not budgets and program.budget is not None and not self.ways:
            budgets = {budget_option(program.budget): program}
        if self.ways or not budgets:
            yield from ((way.name, fixed(program, way)) for way in strategies_of(program))
        yield from budgets.items()

    def _planned(self, cell: Cell, program: BoundProgram, servers: Mapping[str, ServerCapabilities]) -> PlannedCell:
        # The KV, and so its type, is the same for all cells. No vote ends early: how many samples it takes then depends
        # on which come first, and a table is to be the same each time.
        use = PlanUse(rows=self.settings.candidates, confidence=True, fixed=True)
        with _naming(cell):
            return PlannedCell(cell, prepare(program, self.settings, use, self.policy, servers))


@contextmanager
def _naming(cell: Cell) -> Iterator[None]:
    """Says of an ArgumentError which cell it is about."""
    try:
        yield
    except ArgumentError as error:
        raise UsageError(f"{cell.name}: {error}") from error


def refuse_exit_heads(cells: Iterable[PlannedCell]) -> None:
    """Raises UsageError for a cell that exit heads of the session would give another plan."""
    for cell in cells:
        if loses(cell.program):
            message = (
                f"a sweep goes on with the same plans, and for `{cell.cell.name}` `--exit-head` may lead to others"
            )
            raise UsageError(message, "write the early exit into the program: `via amortized(…)`")


def _settings(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{name}={value}" for name, value in pairs]


def _model_settings(named: SweptProgram, settings: Iterable[str]) -> list[str]:
    """Those of `NAME=VALUE` strings that are for models of the program."""
    return [setting for setting in settings if setting.partition("=")[0] in named.models]


def rows_of_cells(cells: Sequence[PlannedCell], read: Callable[[PlannedCell], InputData]) -> list[InputData]:
    """The rows of each cell, as `read` reads them, which are those of the same records.

    Raises DataError, and UsageError where cells are equal as the rows have what the grid varies.
    """
    found = [read(cell) for cell in cells]
    for cell, data in zip(cells, found, strict=True):
        if equal := [name for name in cell.cell.varied if name in data.overruled]:
            name = equal[0]
            raise UsageError(
                f"`--set {name}=…` makes equal cells of `{cell.cell.program}`: every row of `{data.name}` has a "
                f"`{name}` of its own, which goes before `--set`",
                f"leave out `--set {name}=…`, or take the field `{name}` out of the rows",
            )
    first, *others = ([row.id for row in data.rows] for data in found)
    if any(ids != first for ids in others):
        raise DataError("the cells would run different rows of the input", "give all programs the same rows")
    return found


def runs_of_cells(
    cells: Sequence[PlannedCell],
    data: Sequence[InputData],
    seeds: Sequence[int],
    job: Callable[[PlannedCell, int], Job],
    session: Callable[[], Session],
    settings: SessionSettings,
    python: Callable[[PlannedCell], str],
    command: Sequence[str] = (),
) -> list[CellRun]:
    """One run for every seed and cell, the seeds one after another.

    `job` is what a cell runs with a seed. `session` opens the session where files alone do not tell what a model is;
    `python` tells the functions of Python that a cell calls from others, and `command` is the command line.
    """
    digests = [model_digests(cell.plan.models, session) for cell in cells]
    pythons = [python(cell) for cell in cells]
    runs = []
    for seed in seeds:
        for cell, rows, models, functions in zip(cells, data, digests, pythons, strict=True):
            how: dict[str, Any] = {"models": models, "python": functions, "sweep": "", "command": command}
            runs.append(CellRun.of(cell.cell, job(cell, seed), rows, cell.values, settings, **how))
    programs = dict.fromkeys(run.cell.program for run in runs)
    # The same for the same sweep.
    name = f"{'+'.join(programs)}-{digest([run.record.key for run in runs])[:8]}"
    return [replace(run, record=replace(run.record, sweep=name)) for run in runs]


def evaluation_of(
    sweep: Sweep, input: str, seeds: Sequence[int], *, baseline: str | None = None, by: str | None = None
) -> SweepEvaluation:
    """The evaluation of a sweep of which every run is finished; `input` is what people call its rows.

    `baseline` and `by` are explained at `evaluation`. Raises UsageError.
    """
    cells: dict[Cell, list[int]] = {}
    for place, run in enumerate(sweep.runs):
        cells.setdefault(run.cell, []).append(place)
    first = sweep.runs[0]
    groups = groups_of(first.data.rows, by)
    return evaluation(
        first.record.sweep or "",
        input,
        seeds,
        {cell: [sweep.outcomes[place] for place in own] for cell, own in cells.items()},
        {cell: [sweep.ids[place] for place in own] for cell, own in cells.items()},
        baseline=baseline,
        by=by,
        groups=None if groups is None else dict(enumerate(groups)),
    )
