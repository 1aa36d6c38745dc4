"""`qpdsl eval`: programs and values side by side on a data set, and which is better at equal cost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.options.budget_options import budget_options, counts_cost, warn_of_budget
from qpdsl.cli.options.cluster_options import cluster_options
from qpdsl.cli.options.grading_options import grading_options
from qpdsl.cli.options.input_options import input_options
from qpdsl.cli.options.session_options import computing_options, spending_options
from qpdsl.cli.proposals import complete_programs
from qpdsl.cli.shared_options import FileName, code_option, planning_options, surrounding_options, within_option
from qpdsl.cli.signals import interruptible

if TYPE_CHECKING:
    from qpdsl.grammar.source import Source


@click.command(short_help="Compare programs and values on a data set.")
@click.argument("targets", metavar="FILE|NAME…", nargs=-1, required=True, shell_complete=complete_programs)
@surrounding_options
@planning_options
@within_option
@input_options
@grading_options
@budget_options
@click.option(
    "--seeds", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Run with seeds 0 to N-1."
)
@click.option(
    "--ways", is_flag=True, help="Run each way of a program that leaves something open, whatever budget its head says."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "json", "csv"]),
    default="text",
    show_default=True,
    help="What the table is written as; `text` has a plot under it.",
)
@click.option(
    "--output",
    metavar="FILE",
    type=FileName(dash="without `--output` the table goes to stdout"),
    help="Where the table goes.  [default: stdout]",
)
@click.option(
    "--plot",
    metavar="FILE",
    type=FileName(dash="a plot has a file of its own"),
    help="Draw accuracy against sampled tokens, with intervals and the Pareto front, as SVG.",
)
@click.option(
    "--baseline",
    metavar="CELL",
    help="Compare with this cell, such as `best_of_n(n=16)`.  [default: the one that is right most often]",
)
@click.option("--fresh", is_flag=True, help="Start over, and use no row that an earlier sweep has finished.")
@click.option("--overwrite", is_flag=True, help="Replace the table in --output and the plot in --plot.")
@click.option(
    "--concurrency", type=click.IntRange(min=1), help="Rows in flight, of all cells.  [default: what the plans say]"
)
@click.option(
    "--row-timeout",
    type=float,
    metavar="SECONDS",
    help="A row that takes longer than this fails, and the others go on.  [default: as long as it takes]",
)
@code_option
@cluster_options
@computing_options
@spending_options
def command(**values: Any) -> int:
    """Run each program with each combination of values on the same rows, and print how right and how costly each is.

    `--set NAME=V1,V2` gives a parameter several values, in all programs that have it; `--set PROGRAM.NAME=…` in one.
    A value with a comma in it stands in double quotes. All programs of a file are taken. A program that leaves
    something open (`strategy`, `auto`) is run in each of its ways; with `--budget tokens=500,1000` it is run under each
    of these budgets.

    Every cell and seed is a kept run (`qpdsl runs`). What is finished is not run again: after Ctrl-C, a crash or a
    larger grid the same command goes on from there. Cells share samples where that changes none of them.

    \b
    qpdsl eval best_of_n self_consistency --set n=4,16,64 --input counting-500 --limit 100
    qpdsl eval beam_search rebase --set beam_search.width=1,4 --set budget=4,16 --seeds 3 --input counting-500
    """
    from qpdsl.cli.sweeps.sweep_options import SweepOptions

    options = SweepOptions(**values)
    options.check()
    with interruptible():
        return _run(options, click.get_current_context().find_root().obj or ())


def _run(options: Any, argv: tuple[str, ...]) -> int:
    from qpdsl.cli.runs.server_check import ask_servers, refuse_unmet
    from qpdsl.cli.sweeps.sweep_files import sweep_files
    from qpdsl.cli.sweeps.sweep_run import SweepRun
    from qpdsl.model_location import check_models

    surroundings = options.surroundings()
    cells = options.cells(surroundings)
    models = list(dict.fromkeys(model for cell in cells for model in cell.plan.models.values()))
    options.check_used(models)
    options.check_prices(models)
    for cell in cells:
        if cell.plan.policy is not None:
            options.check_prices(cell.program.models.values(), budget=counts_cost(cell.program))
    abilities = ask_servers({model: model for model in models}, options.server_timeout, quiet=options.form == "json")
    if abilities:
        # What the servers can do decides about plans.
        cells = options.cells(surroundings)
        for cell in cells:
            refuse_unmet([cell.plan], abilities, partial(_source, options.targets, cell.program.text))
    # Before torch is imported, which takes seconds.
    check_models(models)
    files = sweep_files(options, cells, surroundings)
    warn_of_budget(*(cell.plan.policy for cell in cells))
    return SweepRun(options, cells, surroundings, files, argv).run()


def _source(targets: Sequence[str], text: str) -> Source | None:
    """The source of a program of this text among the files that the command names."""
    from qpdsl.cli.runs.server_check import source_of

    found = (source_of(target) for target in targets)
    return next((source for source in found if source is not None and source.text == text), None)
