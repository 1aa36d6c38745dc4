"""The options of `qpdsl whatif`, and the settings of the run that it asks: those of its command line, changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from qpdsl.cli.runs.recorded_options import name_of, recorded_options
from qpdsl.cli.runs.run_options import RunOptions
from qpdsl.errors import UsageError
from qpdsl.runs.grid import Axis, read_axes
from qpdsl.runs.store.run_record import RunRecord
from qpdsl.session.setting import STDOUT, FilePath, OneOf, check_values, setting
from qpdsl.session.settings import BUDGET, GRADING, OUTPUT, PROGRAM, Settings

_own = partial(setting, on="whatif")


@dataclass(frozen=True, kw_only=True)
class WhatifOptions:
    """What `qpdsl whatif` takes: what is changed of a saved run, and how the result is shown."""

    run: str
    targets: tuple[str, ...] = ()
    program: str | None = _own(heading=PROGRAM, help="Choose a program of a file that has several.")
    assigned: tuple[str, ...] = _own(
        (),
        heading=PROGRAM,
        option="--set",
        metavar="NAME=V1,V2",
        help="Give a parameter other values than the run's; each is a line of the table.",
    )
    models: tuple[str, ...] = _own(
        (),
        heading=PROGRAM,
        option="--model",
        metavar="NAME=ID|PATH",
        complete="models",
        help="Put another model in the place of NAME. A verifier is asked for its scores; what a model that generates "
        "would have drawn is missing.",
    )
    budget: str | None = _own(
        heading=BUDGET,
        metavar="UNIT=A1,A2",
        shown="the run's",
        help="Average budgets per problem: tokens=500,1000 (programs with `auto` or `strategy`).",
    )
    grader: str | None = _own(heading=GRADING, metavar="GRADER", shown="the run's", help="How answers are graded.")
    by: str | None = _own(heading=GRADING, metavar="FIELD", help="Break accuracy down by FIELD.")
    draw: bool = _own(
        False, heading=PROGRAM, help="Draw the samples that are missing. They are not added to the saved run."
    )
    form: str = _own(
        "text", heading=OUTPUT, kind=OneOf("text", "markdown", "json"), option="--format", help="Format of the result."
    )
    output: str | None = _own(
        heading=OUTPUT,
        kind=FilePath(STDOUT),
        metavar="FILE",
        shown="stdout",
        help="Write the result to FILE, in the format of --format.",
    )
    overwrite: bool = _own(False, heading=OUTPUT, help="Replace the file of --output.")

    def __post_init__(self) -> None:
        check_values(self)
        if self.overwrite and self.output is None:
            raise UsageError("`--overwrite` needs `--output`")


def options_of(record: RunRecord, path: Path) -> RunOptions:
    """What the run in a file was started with. Raises UsageError where that is not known, or cannot be read again."""
    options = recorded_options(record, path)
    if not isinstance(options, RunOptions):
        raise UsageError("only a run of `qpdsl run … --save-samples` can be asked, and this one is of `qpdsl eval`")
    for given, what in ((options.target, "program"), (options.input, "input")):
        if given == "-":
            raise UsageError(f"the run read its {what} from standard input, which cannot be read again")
    return options


def changed(run: RunOptions, options: WhatifOptions) -> Settings:
    """The settings of a run, but for the values of parameters, with what is asked of it instead."""
    names = {name_of(setting) for setting in options.models}
    kept = tuple(one for one in run.models if name_of(one) not in names)
    adapters = tuple(one for one in run.adapters if name_of(one) not in names)
    values = {one.name: getattr(run, one.name) for one in fields(Settings)}
    settings = Settings(**values)
    return replace(
        settings,
        models=(*kept, *options.models),
        adapters=adapters,
        grader=options.grader or run.grader,
        budget=options.budget or run.budget,
        by=options.by,
        assigned=(),
        cluster=None,
        overwrite=False,
    )


def axes_of(assigned: Iterable[str]) -> list[Axis]:
    """The values of a run's parameters, each the only one of its axis."""
    return [Axis(None, name_of(setting), (setting.partition("=")[2],)) for setting in assigned]


def changed_axes(run: RunOptions, options: WhatifOptions, known: Sequence[str]) -> list[Axis]:
    """The values of a run's parameters, in the place of which others come; `known` are those that the programs have.

    Raises UsageError.
    """
    own = read_axes(options.assigned)
    names = {axis.name for axis in own if axis.program is None}
    return [*(axis for axis in axes_of(run.assigned) if axis.name not in names and axis.name in known), *own]
