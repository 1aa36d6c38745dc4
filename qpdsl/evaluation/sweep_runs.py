"""From planned cells to the runs of a sweep, and from what is kept of these to its evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from qpdsl.errors import DataError, UsageError
from qpdsl.evaluation.evaluation import Evaluation, evaluation
from qpdsl.evaluation.grid import Cell
from qpdsl.evaluation.kept_cells import CellRun
from qpdsl.evaluation.planned_cell import PlannedCell
from qpdsl.evaluation.sweep import Sweep
from qpdsl.inputs.input_row import InputData
from qpdsl.inputs.row_groups import groups_of
from qpdsl.run_store.description import run_record
from qpdsl.run_store.fingerprint import Computing, digest, run_fingerprint
from qpdsl.run_store.model_digests import model_digests

if TYPE_CHECKING:
    from qpdsl.dataset.job import Job
    from qpdsl.session import Session


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
    computing: Computing,
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
            own = job(cell, seed)
            fingerprint = run_fingerprint(own, cell.values, computing, models=models, python=functions)
            record = run_record(own, rows, cell.values, fingerprint, sweep="", command=command)
            runs.append(CellRun(cell.cell, own, rows, record))
    programs = dict.fromkeys(run.cell.program for run in runs)
    # The same for the same sweep.
    name = f"{'+'.join(programs)}-{digest([run.record.key for run in runs])[:8]}"
    return [replace(run, record=replace(run.record, sweep=name)) for run in runs]


def evaluation_of(
    sweep: Sweep, input: str, seeds: Sequence[int], *, baseline: str | None = None, by: str | None = None
) -> Evaluation:
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
