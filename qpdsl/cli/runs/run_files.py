"""The files of a run: those that it reads and those that it writes, checked against one another before it starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from qpdsl import zoo
from qpdsl.cli.file_guard import Contents, FileGuard, OutputFile
from qpdsl.cli.options.session_options import SessionOptions
from qpdsl.cli.runs.route_record import ROUTES
from qpdsl.cli.runs.run_options import RunOptions
from qpdsl.dataset.row_outcome import begins_results
from qpdsl.errors import UsageError, UserError
from qpdsl.executor.events.trace import begins_trace
from qpdsl.executor.remote.completion_store import begins_store
from qpdsl.inputs.data_source import data_source
from qpdsl.model_location import own_places
from qpdsl.output import holds_something
from qpdsl.planning import user_cache
from qpdsl.remote.spending import NOWHERE
from qpdsl.run_store.run_folder import RunFolder
from qpdsl.sources.programs import program_path
from qpdsl.sources.surroundings import Surroundings

RESULTS = Contents("the results of a run", begins_results)
TRACE = Contents("the trace of a run", begins_trace)
COMPLETIONS = Contents("completions that are kept", begins_store)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files that a run writes, where it writes them."""

    output: OutputFile | None
    trace: OutputFile | None
    routes: OutputFile | None = None


def run_files(
    options: RunOptions, models: Mapping[str, str], heads: Iterable[str], surroundings: Surroundings
) -> RunFiles:
    """The files that the options name, none of them touched yet.

    `models` are the ids of the run's models, by name; `heads` the folders of heads that draft or leave early.
    Raises UsageError and DataError.
    """
    guard = FileGuard()
    if options.input is not None:
        name_input(guard, options.input)
    if options.target is not None:
        guard.reads(program_path(options.target) or Path("/dev/stdin"), "the program")
    name_inputs(guard, options, models, heads, surroundings)
    output = None if options.output is None else _output(guard, options, Path(options.output).absolute())
    trace = None if options.trace is None else _trace(guard, options, Path(options.trace).absolute())
    routes = None
    if options.record_routes is not None:
        place = Path(options.record_routes).absolute()
        routes = guard.writes(place, "`--record-routes`", ROUTES, overwrite=options.overwrite)
    name_completions(guard, options)
    return RunFiles(output, trace, routes)


def name_inputs(
    guard: FileGuard,
    options: SessionOptions,
    models: Mapping[str, str],
    heads: Iterable[str],
    surroundings: Surroundings,
) -> None:
    """Names to the guard what a command reads that runs programs, besides these: files, and folders of models.

    `models` are ids by name, `heads` the folders of heads that draft or leave early. Raises UsageError and ModelError.
    """
    for file in sorted(surroundings.read):
        guard.reads(file, "a file that the program uses")
    for name in options.python:
        guard.reads(Path(name), "a file of `--python`")
    for name, model in models.items():
        for location, what in own_places(model):
            if isinstance(location, Path) and location.is_dir():
                guard.keeps(location, f"the folder of the {what} `{name}`")
            elif isinstance(location, Path):
                guard.reads(location, f"the file of the {what} `{name}`")
    for folder in heads:
        guard.keeps(Path(folder).expanduser(), f"the folder of the heads `{folder}`")
    for builtin in zoo.BUILTIN:
        guard.keeps(zoo.path(builtin.name), f"the folder of the model `{builtin.name}`")
    with contextlib.suppress(UserError):
        guard.keeps(user_cache.folder(), "the folder where qpdsl keeps its statistics")
    with contextlib.suppress(UserError):
        guard.keeps(RunFolder().path, "the folder of the kept runs")
    if options.prices is not None:
        guard.reads(Path(options.prices), "the file of `--prices`")


def name_completions(guard: FileGuard, options: SessionOptions) -> None:
    """Names to the guard the file that completions are kept in, once all that is read is named. Raises UsageError."""
    if options.completions not in (None, NOWHERE):
        # What it holds is used, and more is added to it.
        guard.writes(Path(options.completions).absolute(), "`--completions`", COMPLETIONS, overwrite=True)


def name_input(guard: FileGuard, name: str) -> None:
    """Names to the guard what `--input` names. Raises UsageError and DataError."""
    source = data_source(name)
    if isinstance(source, Path) and source.is_dir():
        guard.keeps(source, "the folder of the input data")
    elif isinstance(source, Path) or source is None:
        guard.reads(source or Path("/dev/stdin"), "the input data")


def _output(guard: FileGuard, options: RunOptions, path: Path) -> OutputFile:
    # Whether a run that is resumed replaces what is there is known once it is found.
    return guard.writes(path, "`--output`", RESULTS, overwrite=options.overwrite or options.resume)


def _trace(guard: FileGuard, options: RunOptions, path: Path) -> OutputFile:
    if options.resume and holds_something(path.resolve()):
        guard.writes(path, "`--trace`", TRACE, overwrite=True)
        raise UsageError(f"`{path}` is there already", "a run that is resumed needs a new file for `--trace`")
    return guard.writes(path, "`--trace`", TRACE, overwrite=options.overwrite)
