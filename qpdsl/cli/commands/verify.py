"""`qpdsl verify`: rows of a saved run, run again."""

from __future__ import annotations

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.proposals import complete_runs
from qpdsl.cli.shared_options import FileName, format_option
from qpdsl.errors import UsageError

_ROWS = 20


@click.command()
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option(
    "--rows", type=click.IntRange(min=1), metavar="N", help=f"How many rows to run again.  [default: {_ROWS}]"
)
@click.option("--all", "whole", is_flag=True, help="Run all rows.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Choose other rows: one of each of N equal parts of the run."
)
@click.option(
    "--input", "data", metavar="DATA", type=FileName(), help="Where the data is here.  [default: where it was]"
)
@click.option("--model", "models", metavar="NAME=PATH", multiple=True, help="Where a model is here: the same files.")
@click.option("--device", help="Run models on cpu, cuda or cuda:N.  [default: as the run]")
@click.option("--dtype", help="Compute in this type.  [default: as the run]")
@format_option
def command(
    run: str,
    rows: int | None,
    whole: bool,
    seed: int,
    data: str | None,
    models: tuple[str, ...],
    device: str | None,
    dtype: str | None,
    form: str,
) -> Exit:
    """Run rows of a saved run again, here, and say whether they are the same to the byte.

    Of a row that is not, the first token that differs is named, and by how much it won: the margin between the two best
    perturbed logits. That takes a run with `--save-samples`; of another one answers, scores and saved columns are held
    against each other. The exit code is 1 where a row differs.

    Program, values, seed, rows and models must be those of the run: another model is refused. Another build, device or
    type is named.

    \b
    qpdsl verify last
    qpdsl verify run.qprun --rows 50 --model llm=./SmolLM2-135M-Instruct.Q4_1.gguf
    """
    from qpdsl.cli.runs.repeated_run import Elsewhere
    from qpdsl.cli.runs.verify_run import verify
    from qpdsl.planner.values.value import dumps
    from qpdsl.runs.compare.side import read_run
    from qpdsl.runs.store.run_folder import RunFolder
    from qpdsl.runs.verification_text import notes, verification_lines, verification_record

    if whole and rows is not None:
        raise UsageError("`--all` and `--rows` both say how many rows to run again; give one of them")
    saved = read_run(RunFolder().find(run))
    found = verify(saved, Elsewhere(data, models, device, dtype), None if whole else rows or _ROWS, seed)
    for note in notes(found):
        say(note)
    put(dumps(verification_record(found)) if form == "json" else "\n".join(verification_lines(found)))
    return Exit.ROW_FAILED if found.differing else Exit.OK
