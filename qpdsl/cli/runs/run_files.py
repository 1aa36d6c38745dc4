"""The files of a run: those that it reads and those that it writes, checked against one another before it starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from qpdsl import zoo
from qpdsl.cli.file_guard import Contents, FileGuard, OutputFile
from qpdsl.cli.runs.run_options import RunOptions
from qpdsl.errors import UsageError, UserError
from qpdsl.executor.events.trace import begins_trace
from qpdsl.executor.remote.completion_store import begins_store
from qpdsl.executor.remote.spending import NOWHERE
from qpdsl.model_location import own_places
from qpdsl.output import holds_something
from qpdsl.planner.plan.physical import PhysicalPlan, head_folders
from qpdsl.runs.data.data_source import data_source
from qpdsl.runs.record_file import record_format
from qpdsl.runs.row_outcome import begins_results
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.session import user_cache
from qpdsl.session.prepare import Prepared
from qpdsl.session.programs import program_path
from qpdsl.session.settings import Settings
from qpdsl.session.surroundings import Surroundings, ToolPlace

RESULTS = Contents("the results of a run", begins_results)
TRACE = Contents("the trace of a run", begins_trace)
COMPLETIONS = Contents("completions that are kept", begins_store)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files that a run writes, where it writes them."""

    output: OutputFile | None
    trace: OutputFile | None


def run_files(options: RunOptions, prepared: Prepared) -> RunFiles:
    """The files that the options name, none of them touched yet. Raises UsageError and DataError."""
    targets = [] if options.target is None else [options.target]
    guard = guard_of(options, targets, prepared.models, prepared.plans, prepared.bound.surroundings)
    output = None if options.output is None else _output(guard, options, Path(options.output).absolute())
    trace = None if options.trace is None else _trace(guard, options, Path(options.trace).absolute())
    name_completions(guard, options)
    return RunFiles(output, trace)


def guard_of(
    options: Settings,
    targets: Iterable[str],
    models: Mapping[str, str],
    plans: Iterable[PhysicalPlan],
    surroundings: Surroundings,
) -> FileGuard:
    """A guard that knows what a command reads that runs programs: their files, its input, and folders of models.

    `targets` name the programs, `models` are ids by name; `plans` name the folders of heads that draft or leave early,
    and so do the options. Raises UsageError, DataError and ModelError.
    """
    guard = FileGuard()
    if options.input is not None:
        _name_input(guard, options.input)
    for target in targets:
        guard.reads(program_path(target) or Path("/dev/stdin"), "the program")
    for file in sorted(surroundings.read):
        guard.reads(file, "a file that the program uses")
    for name in options.python:
        guard.reads(Path(name), "a file of `--python`")
    for tool in map(ToolPlace.of, options.tools):
        if tool.file is not None:
            guard.reads(Path(tool.file), "a file of `--tool`")
    name_models(guard, models)
    folders = {*map(str, options.exit_heads.values()), *(folder for plan in plans for folder in head_folders(plan))}
    for folder in sorted(folders):
        guard.keeps(zoo.head_path(folder), f"the folder of the heads `{folder}`")
    if options.prices is not None:
        guard.reads(Path(options.prices), "the file of `--prices`")
    return guard


def name_models(guard: FileGuard, models: Mapping[str, str]) -> None:
    """Names to the guard the files and folders of models by their names, and the folders that qpdsl itself keeps.

    Raises ModelError.
    """
    for name, model in models.items():
        for location, what in own_places(model):
            if isinstance(location, Path) and location.is_dir():
                guard.keeps(location, f"the folder of the {what} `{name}`")
            elif isinstance(location, Path):
                guard.reads(location, f"the file of the {what} `{name}`")
    for builtin in zoo.BUILTIN:
        guard.keeps(zoo.path(builtin.name), f"the folder of the model `{builtin.name}`")
    with contextlib.suppress(UserError):
        guard.keeps(user_cache.folder(), "the folder where qpdsl keeps its statistics")
    with contextlib.suppress(UserError):
        guard.keeps(RunFolder().path, "the folder of the saved runs")


def name_completions(guard: FileGuard, options: Settings) -> None:
    """Names to the guard the file that completions are kept in, once all that is read is named. Raises UsageError."""
    if options.completions not in (None, NOWHERE):
        # What it holds is used, and more is added to it.
        guard.writes(Path(options.completions).absolute(), "`--completions`", COMPLETIONS, overwrite=True)


def _name_input(guard: FileGuard, name: str) -> None:
    """Names to the guard what `--input` names. Raises UsageError and DataError."""
    source = data_source(name)
    if isinstance(source, Path) and source.is_dir():
        guard.keeps(source, "the folder of the input data")
    elif isinstance(source, Path) or source is None:
        guard.reads(source or Path("/dev/stdin"), "the input data")


def _output(guard: FileGuard, options: RunOptions, path: Path) -> OutputFile:
    record_format(str(options.output))
    # Whether a run that is resumed replaces what is there is known once it is found.
    return guard.writes(path, "`--output`", RESULTS, overwrite=options.overwrite or options.resume)


def _trace(guard: FileGuard, options: RunOptions, path: Path) -> OutputFile:
    if options.resume and holds_something(path.resolve()):
        guard.writes(path, "`--trace`", TRACE, overwrite=True)
        raise UsageError(f"`{path}` is there already", "a run that is resumed needs a new file for `--trace`")
    return guard.writes(path, "`--trace`", TRACE, overwrite=options.overwrite)
