"""The files of a sweep: those that it reads and those that it writes, checked against one another before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qpdsl.cli.file_guard import Contents, FileGuard, OutputFile
from qpdsl.cli.runs.run_files import name_completions, name_input, name_inputs
from qpdsl.cli.sweeps.sweep_options import SweepOptions
from qpdsl.evaluation.evaluation_records import begins_evaluation
from qpdsl.evaluation.planned_cell import PlannedCell
from qpdsl.planner.plan.physical import head_folders
from qpdsl.plots.svg_scatter import begins_plot
from qpdsl.sources.programs import program_path
from qpdsl.sources.surroundings import Surroundings

EVALUATION = Contents("the table of a sweep", begins_evaluation)
PLOT = Contents("a plot of qpdsl", begins_plot)


@dataclass(frozen=True, slots=True)
class SweepFiles:
    """The files to write; None where none was asked for."""

    output: OutputFile | None
    plot: OutputFile | None


def sweep_files(options: SweepOptions, cells: Sequence[PlannedCell], surroundings: Surroundings) -> SweepFiles:
    """The files that the options name, none of them touched yet. Raises UsageError and DataError."""
    guard = FileGuard()
    assert options.input is not None
    name_input(guard, options.input)
    for target in options.targets:
        if (program := program_path(target)) is not None:
            guard.reads(program, "a program")
    models = {name: model for cell in cells for name, model in cell.plan.models.items()}
    heads = {folder for cell in cells for folder in head_folders(cell.plan)}
    name_inputs(guard, options, models, heads, surroundings)
    output, plot = (
        None if name is None else guard.writes(Path(name).absolute(), option, contents, overwrite=options.overwrite)
        for name, option, contents in (
            (options.output, "`--output`", EVALUATION),
            (options.plot, "`--plot`", PLOT),
        )
    )
    name_completions(guard, options)
    return SweepFiles(output, plot)
