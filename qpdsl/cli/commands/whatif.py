"""`qpdsl whatif`: what other values, votes, verifiers and programs would have given for the rows of a saved run."""

from __future__ import annotations

from typing import Any

import click

from qpdsl.cli.proposals import complete_programs, complete_runs
from qpdsl.cli.runs.whatif_options import WhatifOptions
from qpdsl.cli.shared_options import HeadedCommand, setting_options
from qpdsl.cli.signals import interruptible


@click.command(cls=HeadedCommand)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.argument("targets", metavar="[FILE|NAME]...", nargs=-1, shell_complete=complete_programs)
@setting_options(WhatifOptions, "whatif")
def command(**values: Any) -> int:
    """Say what other values, or other programs, would have given for the rows of a saved run, from its samples.

    RUN was made by `qpdsl run … --input … --save-samples`, and is named by its id, the beginning or the end of one,
    `last`, `last-1` or a file. Nothing is generated, and no weights are loaded: with equal seeds the samples of n=4 are
    the first four of n=16. A line of the table is what `qpdsl eval` would print for it. Where samples are needed that
    were never drawn, it says how many, and of such a line no accuracy; the command then exits with 1.

    Only scores that the run did not ask for are asked of their model: those of another verifier, and of text that it
    was not shown.

    \b
    qpdsl run self_consistency --set n=16 --input counting-500 --save-samples
    qpdsl whatif last --set n=1,2,4,8
    qpdsl whatif last best_of_n weighted_best_of_n --set n=4,16
    qpdsl whatif last --model prm=./my-verifier
    """
    options = WhatifOptions(**values)
    with interruptible():
        from qpdsl.cli.runs.whatif_run import WhatifRun
        from qpdsl.runs.store.run_file import RunFile
        from qpdsl.runs.store.run_folder import RunFolder

        with RunFile.reading(RunFolder().find(options.run)) as run:
            return WhatifRun(options, run).carry_out()
