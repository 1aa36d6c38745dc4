"""`qpdsl diff`: two saved runs beside each other."""

from __future__ import annotations

from typing import Any

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.proposals import complete_runs
from qpdsl.cli.shared_options import format_option


@click.command()
@click.argument("first", metavar="A", shell_complete=complete_runs)
@click.argument("second", metavar="B", shell_complete=complete_runs)
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="How many of the problems that flipped to show, each way.",
)
@click.option("--by", "field", metavar="FIELD", help="Show the accuracy by a field of the rows, such as `level`, too.")
@click.option(
    "--first-divergence",
    is_flag=True,
    help="Run the problems of both again, and show for each the first token or choice that differs, how near a tie it "
    "was, and what flips came from.",
)
@click.option(
    "--fail-if",
    type=click.Choice(["worse"]),
    help="End with the exit code 1 where B has significantly fewer right answers.",
)
@format_option
def command(
    first: str,
    second: str,
    rows: int,
    field: str | None,
    first_divergence: bool,
    fail_if: str | None,
    form: str,
) -> Exit:
    """Say whether run B is better than run A, how sure that is, and where they differ.

    A run is named by its id, the beginning or the end of one, `last`, `last-1` or a file; `qpdsl runs` lists them.
    Several runs with commas between them are the seeds of one set-up.

    Problems are compared one by one: by McNemar's exact test, and over several seeds by a permutation test. What is
    called better or worse is significant at 5%; intervals are at 95%.
    """
    from qpdsl.planner.values.value import dumps
    from qpdsl.runs.compare.comparison import compare
    from qpdsl.runs.compare.comparison_record import comparison_record
    from qpdsl.runs.compare.comparison_text import comparison_lines, notes, verdict
    from qpdsl.runs.compare.side import read_side
    from qpdsl.runs.store.run_folder import RunFolder

    folder = RunFolder()
    comparison = compare(read_side(first, folder), read_side(second, folder))
    groups = comparison.by_group(field) if field is not None else []
    for note in notes(comparison):
        say(note)
    found = None
    if first_divergence:
        from qpdsl.cli.runs.diverging_runs import divergences_of

        found = divergences_of(comparison)
    record: dict[str, Any] = {}
    lines: list[str] = []
    if found is not None:
        from qpdsl.runs.compare.divergence_text import divergence_lines, divergence_record

        record, lines = {"first_divergence": divergence_record(found, rows=rows)}, divergence_lines(found, rows=rows)
    if form == "json":
        put(dumps(comparison_record(comparison, rows=rows, groups=groups, field=field or "") | record))
    else:
        shown = comparison_lines(comparison, rows=rows, groups=groups, field=field or "")
        put("\n".join([*shown[:-1], *lines, *([""] if lines else []), shown[-1]]))
    return Exit.ROW_FAILED if fail_if == verdict(comparison).kind else Exit.OK
