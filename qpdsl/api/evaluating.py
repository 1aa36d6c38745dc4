"""`qp.evaluate`: programs and values side by side on a data set, as `qpdsl eval` has them."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpdsl.api.background import driven, wait_for
from qpdsl.api.binding import Binding, default_session
from qpdsl.api.loading import load
from qpdsl.api.notebook import not_in_a_loop
from qpdsl.api.other_names import Suggesting
from qpdsl.api.plain_errors import in_one_frame
from qpdsl.api.program import Program, model_argument, settings_of
from qpdsl.arguments import ArgumentError, plain_value
from qpdsl.budgets.policy_for import SavedPolicies, program_policy
from qpdsl.errors import UsageError, reason, refuse_keywords, shorten
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.budget_policy import BudgetPolicy
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.values.value import Value
from qpdsl.runs.answer_metrics import ChoiceAccuracy
from qpdsl.runs.cells import CellPlanner, PlannedCell, evaluation_of, refuse_exit_heads, rows_of_cells, runs_of_cells
from qpdsl.runs.data.data_source import DataSource, LoadedData, data_source, given
from qpdsl.runs.data.input_row import InputData, groups_of
from qpdsl.runs.data.rows import read_rows
from qpdsl.runs.evaluation import CellResult, SweepEvaluation, named_cell
from qpdsl.runs.evaluation_text import csv_text, markdown_lines, text_lines, to_json
from qpdsl.runs.graders.grader import Grader
from qpdsl.runs.graders.judge_program import JudgeProgram, bind_grader
from qpdsl.runs.grid import Axis
from qpdsl.runs.job import Job
from qpdsl.runs.plots import svg
from qpdsl.runs.runner import LocalRunner
from qpdsl.runs.store.continuing import SavedCells
from qpdsl.runs.store.fingerprint import digest, operators
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RunRecord
from qpdsl.runs.sweep import Sweep
from qpdsl.session.function_digest import functions_digest
from qpdsl.session.planning import reads_of
from qpdsl.session.programs import program_names
from qpdsl.session.setting import Whole
from qpdsl.session.settings import DataSettings
from qpdsl.session.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.executor.runtime.instance.functions import PythonFunction
    from qpdsl.session.session import Session

ProgramArgument = Program[..., Any] | str | Path


@dataclass(frozen=True)
class EvaluatedCell:
    """A program with a value for each parameter that was set, and what it came to on the rows.

    `accuracy` is a share, with its 95% interval; both are None where no answer could be graded. `tokens` are sampled
    tokens, `thought_tokens` those of them that are thoughts, and `seconds` the engine's, all a problem; `seconds` are
    None where they are not known. `points` says how many
    percentage points more right the cell is than the baseline, on the same problems, with the 95% interval and the
    p-value of that; they are None for the baseline itself. `groups` has the accuracy by the value of the field `by`.
    With `candidates=True`, `at_k["pass"][4]` has the `accuracy` and the `interval` of pass@4, and of the other metrics
    likewise. `failed` counts rows, of all seeds. `runs` are the ids of the saved runs, one a seed.
    """

    name: str
    program: str
    parameters: Mapping[str, str]
    accuracy: float | None
    interval: tuple[float, float] | None
    tokens: float
    thought_tokens: float
    seconds: float | None
    points: float | None
    points_interval: tuple[float, float] | None
    p_value: float | None
    groups: Mapping[str, float]
    at_k: Mapping[str, Mapping[int, ChoiceAccuracy]]
    failed: int
    runs: tuple[str, ...]

    @classmethod
    def of(cls, result: CellResult) -> EvaluatedCell:
        figures, interval, paired = result.figures, result.figures.interval, result.against
        return cls(
            name=result.cell.name,
            program=result.cell.program,
            parameters=dict(result.cell.settings),
            accuracy=figures.accuracy,
            interval=None if interval is None else (interval.low, interval.high),
            tokens=figures.tokens,
            thought_tokens=figures.thought_tokens,
            seconds=figures.seconds,
            points=None if paired is None else 100 * paired.difference,
            points_interval=None if paired is None else (100 * paired.interval.low, 100 * paired.interval.high),
            p_value=None if paired is None else paired.p_value,
            groups=dict(result.groups),
            at_k={
                metric: {own.k: own for own in figures.at_k if own.metric == metric}
                for metric in dict.fromkeys(own.metric for own in figures.at_k)
            },
            failed=figures.failed,
            runs=result.runs,
        )


class Evaluation(Suggesting):
    """What `qp.evaluate` gives: the cells in the order of the grid, and the table of `qpdsl eval` as text.

    `baseline` is the name of the cell that the others are compared with, None where nothing was graded.
    """

    def __init__(self, made: SweepEvaluation) -> None:
        self._made = made
        self.cells = tuple(map(EvaluatedCell.of, made.results))
        self.baseline = None if made.baseline is None else made.baseline.name

    def __str__(self) -> str:
        return "\n".join(text_lines(self._made))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from qpdsl.api.html import evaluation_html

        return evaluation_html(self._made)

    def to_json(self) -> dict[str, Any]:
        """The record that `--format json` writes."""
        return to_json(self._made)

    def to_csv(self) -> str:
        """A line a cell, under the names of the columns."""
        return csv_text(self._made)

    def to_markdown(self) -> str:
        """The tables in Markdown as GitHub has it."""
        return "\n".join(markdown_lines(self._made))

    def plot(self, file: str | Path) -> None:
        """Writes the picture of accuracy against sampled tokens, as SVG. Raises UsageError."""
        text = svg(self._made.scatter())
        try:
            Path(file).write_text(text + "\n", "utf-8")
        except OSError as error:
            raise UsageError(f"cannot write `{file}`: {reason(error)}") from error


@in_one_frame
def evaluate(
    programs: ProgramArgument | Iterable[ProgramArgument],
    data: str | Path | Iterable[Mapping[str, Any]],
    *,
    set: Mapping[str, Any] | None = None,
    seeds: int = 1,
    dataset: str | None = None,
    map: Mapping[str, str] | None = None,
    where: str | None = None,
    shuffle: int | None = None,
    limit: int | None = None,
    grader: str | Callable[..., Any] | None = None,
    candidates: bool = False,
    by: str | None = None,
    baseline: str | None = None,
    fresh: bool = False,
    **values: Any,
) -> Evaluation:
    """Runs each program with each combination of values on the same rows, and says how right and how costly each is.

    A program may be the name of a shipped one, or a file, of which all are taken. `data` are rows as `map` of a program
    takes them, or what `qpdsl run --input` takes. `set` has, by the name of a parameter such as `n` or
    `beam_search.width`, its value or a list of its values; `n=…` says the same as `set={"n": …}`. `grader` is a name as
    `--grader` takes it, or a function of some of `answer`, `reference` and `row`. The other keywords are options of
    `qpdsl eval`. Every cell and seed is a saved run as of that command: what one has finished, the other does not run
    again. Where a program or a grader calls functions of which the source does not tell what they compute, all runs, or
    is graded, anew.

    It runs in the session of the programs or of the `with qp.using(…)` around, and shares samples where that can. An
    error or an interruption loses no finished row. Raises UserError, QpError, ModelError, ArgumentError, BudgetReached
    and ServerGone, and RuntimeError in an event loop.
    """
    not_in_a_loop("`await asyncio.to_thread(qp.evaluate, …)`", in_cells=False)
    Whole(1).check("seeds", seeds)
    maps = tuple(f"{name}={source}" for name, source in (map or {}).items())
    read = DataSettings(dataset=dataset, maps=maps, where=where, shuffle=shuffle, limit=limit)
    found = _programs(programs)
    axes = _axes(_set(found, set or {}, values))
    folder, binding = RunFolder(), _common_binding(found)
    cells = _cells(found, binding, axes, SavedPolicies.of(() if fresh else _records(folder)), candidates)
    if baseline is not None:
        named_cell([cell.cell for cell in cells], baseline)
    source = _source(data)
    rows = rows_of_cells(cells, lambda cell: read_rows(source, cell.plan, cell.values, read, None))
    groups_of(rows[0].rows, by)
    grades = _grader(rows[0], grader, binding)
    own = dict(zip(dict.fromkeys(cell.cell.program for cell in cells), found, strict=True))

    def job(cell: PlannedCell, seed: int) -> Job:
        return Job.of(cell.prepared, seed, grader=grades, functions=own[cell.cell.program].functions)

    def python(cell: PlannedCell) -> str:
        return own[cell.cell.program].python

    with contextlib.ExitStack() as stack:

        @cache
        def session() -> Session:
            opened = binding.session or default_session()
            wait_for(_load(opened, cells, grades))
            stack.enter_context(opened.sharing_samples())
            return opened

        runs = runs_of_cells(cells, rows, range(seeds), job, session, settings_of(binding), python)
        saved = SavedCells(folder) if fresh else SavedCells.of(folder)
        sweep = Sweep(runs, saved.open, saved.whole)
        sweep.run(
            lambda: LocalRunner(session(), [run.job for run in runs], drive=driven, calls=sweep.calls_of), wait_for
        )
    name = str(data) if isinstance(data, str | Path) else rows[0].name
    return Evaluation(evaluation_of(sweep, name, range(seeds), baseline=baseline, by=by))


@dataclass(frozen=True)
class _Swept:
    """A program as `CellPlanner` loads it, with what tells its Python functions from others."""

    program: Program[..., Any]
    python: str

    @property
    def target(self) -> str:
        return self.program.file.source.name

    @property
    def params(self) -> list[str]:
        return [param.name for param in self.program.params]

    @property
    def models(self) -> frozenset[str]:
        return frozenset(self.program.logical.model_params)

    @property
    def functions(self) -> Mapping[str, PythonFunction]:
        return self.program.functions

    def load(self, surroundings: Surroundings, settings: Iterable[str] = ()) -> LogicalProgram:
        """See `SweptProgram`; what surrounds the program it has itself."""
        pairs = (setting.partition("=") for setting in settings)
        return self.program.lowered({name: (id, None) for name, _, id in pairs})


def _programs(given: ProgramArgument | Iterable[ProgramArgument]) -> list[_Swept]:
    """The programs, each once. Raises ArgumentError, UsageError and QpError."""
    several = [given] if isinstance(given, Program | str | Path) else given
    if not isinstance(several, Iterable):
        raise ArgumentError(f"`programs` takes programs and names of such, not a {type(several).__name__}")
    found: list[Program[..., Any]] = []
    for one in several:
        if not isinstance(one, Program | str | Path):
            raise ArgumentError(f"`programs` takes programs and names of such, not a {type(one).__name__}")
        own = [one] if isinstance(one, Program) else [load(one, name) for name in program_names(str(one))]
        found += [program for program in own if program not in found]
    if not found:
        raise ArgumentError("`programs` names no program")
    return [_Swept(program, _python(program)) for program in found]


def _python(program: Program[..., Any]) -> str:
    """What tells a program's functions from others, for saved runs; empty where it has none."""
    functions = program.functions.values()
    if not functions:
        return ""
    facts = [[one.name, one.kind, one.rows, one.returns] for one in functions]
    return f"{digest(facts)} {_told([one.call for one in functions])}"


def _told(functions: Iterable[Callable[..., Any]]) -> str:
    """What tells functions from others. Where that cannot be told, it is another each time, so that all runs anew."""
    return functions_digest(functions) or f"untold {secrets.token_hex(8)}"


def _common_binding(programs: Sequence[_Swept]) -> Binding:
    """What all programs run with. Raises UsageError where that differs, and for a seed."""
    bindings = [one.program.bound() for one in programs]
    first = bindings[0]
    for other in bindings:
        if other.session is not first.session or other.row_timeout != first.row_timeout:
            raise UsageError(
                "the programs would run in other sessions, or with other timeouts",
                "`with qp.using(…)` around `qp.evaluate` sets them for all programs",
            )
        if other.seed is not None:
            raise UsageError(
                "`qp.evaluate` sets the seeds itself", "`seeds=3` runs each cell with the seeds 0, 1 and 2"
            )
    return first


def _cells(
    programs: Sequence[_Swept], binding: Binding, axes: Sequence[Axis], kept: SavedPolicies, candidates: bool
) -> list[PlannedCell]:
    """Every cell of the grid, planned as `qpdsl eval` plans it. Raises UsageError, QpError and ArgumentError."""
    # Rows are routed by no router, as no token depends on one.
    settings = replace(settings_of(binding), router=None, candidates=candidates, row_timeout=binding.row_timeout)
    pythons = {one.program.name: one.python for one in programs}

    def learned(program: LogicalProgram, values: Mapping[str, Value]) -> BudgetPolicy | None:
        return program_policy(program, values, settings, python=pythons[program.name])

    cells = CellPlanner(Surroundings(), settings, policy=kept.before(learned)).grid(programs, axes)
    if settings.exit_heads:
        refuse_exit_heads(cells)
    return cells


def _records(folder: RunFolder) -> Iterator[RunRecord]:
    return (info.record for info in folder.infos())


def _set(programs: Sequence[_Swept], named: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `set` and of keywords. Raises TypeError for no parameter, and ArgumentError for one of both."""
    taken = [name for name in signature(evaluate).parameters if name != "values"]
    own = [name for one in programs for name in (*one.params, *one.models)]
    refuse_keywords("evaluate", values, (*taken, *own))
    for name in values:
        if name in named:
            raise ArgumentError(f"two values for `{name}`, by `set` and as a keyword")
    return {**named, **values}


def _axes(given: Mapping[str, Any]) -> list[Axis]:
    """The axes of `set`, with values as the command line has them, so that both make the same cells."""
    axes: list[Axis] = []
    for key, value in given.items():
        program, dot, name = key.rpartition(".")
        if not name or (dot and not program):
            raise ArgumentError(f"`set` has the names of parameters, `n` or `best_of_n.n`, not `{shorten(key)}`")
        values = tuple(_written(key, one) for one in (value if isinstance(value, list | tuple | range) else [value]))
        if not values:
            raise ArgumentError(f"`set` has no value for `{key}`")
        if len(frozenset(values)) < len(values):
            raise ArgumentError(f"`set` has a value of `{key}` twice")
        axes.append(Axis(program or None, name, values))
    return axes


def _written(name: str, value: Any) -> str:
    """A value as `--set` takes it. Raises ArgumentError."""
    if value is None:
        raise ArgumentError(f"`set` cannot have None for `{name}`: leave it out where that is its default")
    if hasattr(value, "adapter"):
        id, kind = model_argument(name, value)
        if kind is not None:
            raise ArgumentError(f"`set` takes the model of `{name}` without a kind, which the program can name")
        return id
    plain = plain_value(value)
    if isinstance(plain, str):
        # A text after one `@` would name a file.
        return f"@{plain}" if plain.startswith("@") else plain
    try:
        return json.dumps(plain, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"`set` has a value for `{name}` that no parameter takes: {shorten(repr(value))}"
        ) from error


def _source(data: str | Path | Iterable[Mapping[str, Any]]) -> DataSource | LoadedData:
    """Where the rows come from; those of Python are read once. Raises ArgumentError, UsageError and DataError."""
    if isinstance(data, str | Path):
        if str(data) == "-":
            raise UsageError("standard input can be read once, and every cell reads the rows", "give a file, or rows")
        return data_source(str(data))
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise ArgumentError(f"`data` takes rows, or a name of such, not a {type(data).__name__}")
    return given(data)


def _grader(data: InputData, grader: str | Callable[..., Any] | None, binding: Binding) -> Grader:
    """What grades the answers. Raises UsageError and ArgumentError."""
    # One of the graders loads torch.
    from qpdsl.runs.graders.known_graders import grader_named, grader_of, grades_any, none_to_grade
    from qpdsl.runs.graders.python_answer import FunctionAnswer

    if grader is None or isinstance(grader, str):
        allowed = binding.session is not None and binding.session.settings.allow_code
        return grader_of(data, grader, lambda name: grader_named(name, allow_code=allowed, judge=_judge))
    if isinstance(grader, Program) or not callable(grader):
        raise ArgumentError("`grader` takes a function, or a name such as `math` or `judge:PROGRAM`")
    name = getattr(grader, "__name__", type(grader).__name__)
    made = FunctionAnswer(grader, name, _told([grader]), f"`{name}`")
    if not grades_any(made, data):
        raise none_to_grade(made.name)
    return made


def _judge(target: str) -> Grader:
    program = load(target).logical
    plan = planned(program, reads_of(program))
    return JudgeProgram(plan, digest([operators(plan.ops), dict(plan.models)]))


async def _load(session: Session, cells: Sequence[PlannedCell], grader: Grader) -> None:
    for cell in cells:
        session.load(cell.plan)
    bind_grader(grader, session)
