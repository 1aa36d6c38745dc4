"""`qpdsl eval`: programs and values side by side on a data set, and which is better at equal cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.project_command import ProjectCommand
from qpdsl.cli.runs.sweep_options import SweepOptions
from qpdsl.cli.shared_options import setting_options, targets_argument
from qpdsl.cli.signals import interruptible

if TYPE_CHECKING:
    from qpdsl.cli.watched import WatchedProcess


@click.command(cls=ProjectCommand)
@targets_argument(required=True)
@setting_options(SweepOptions, "eval", overwrite="Replace the files of --output, --plot and --trace.")
def command(**values: Any) -> int:
    """Run each program with each combination of values on the same rows, and print how right and how costly each is.

    `--set NAME=V1,V2` gives a parameter several values, in all programs that have it; `--set PROGRAM.NAME=…` in one.
    A value with a comma in it stands in double quotes. All programs of a file are taken. A program that leaves
    something open (`strategy`, `auto`) is run in each of its ways; with `--budget tokens=500,1000` it is run under each
    of these budgets.

    Every cell and seed is a saved run (`qpdsl runs`). What is finished is not run again: after Ctrl-C, a crash or a
    larger grid the same command goes on from there. Cells share samples where that changes none of them.

    \b
    qpdsl eval best_of_n self_consistency --set n=4,16,64 --input counting-500 --limit 100
    qpdsl eval beam_search rebase --set beam_search.width=1,4 --set budget=4,16 --seeds 3 --input counting-500
    """
    options = SweepOptions(**values)
    options.check()
    with interruptible():
        return _run(options, click.get_current_context().find_root().obj or ())


def _run(options: SweepOptions, argv: tuple[str, ...]) -> int:
    from qpdsl.cli.shared_options import spoken
    from qpdsl.cli.watched import watched

    if options.tui:
        from qpdsl.cli.runs.dashboard import run_watched

        return run_watched(argv, "cells")
    quiet = options.form == "json"
    with watched("eval", options.targets, options.cluster, **spoken(options, quiet=quiet)) as process:
        return _swept(process, options, argv)


def _swept(process: WatchedProcess, options: SweepOptions, argv: tuple[str, ...]) -> int:
    from qpdsl.cli.diagnostics import show
    from qpdsl.cli.runs.sweep_run import SweepRun, planned_cells, sweep_files
    from qpdsl.cli.shared_options import warn_of_budget
    from qpdsl.session.prepare import surroundings_of
    from qpdsl.session.telemetry import exporting

    process.prepare("planning the cells")
    surroundings = surroundings_of(options)
    cells = planned_cells(options, surroundings, process)
    show(dict.fromkeys(warning for cell in cells for warning in cell.program.warnings))
    files = sweep_files(options, cells, surroundings)
    warn_of_budget(*(cell.plan.policy for cell in cells))
    with exporting(process.stream, options.otel):
        return SweepRun(process, options, cells, surroundings, files, argv).carry_out()
