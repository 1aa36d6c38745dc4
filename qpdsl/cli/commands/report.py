"""`qpdsl report`: a recorded run as one page or for a trace viewer, and saved runs beside each other as one page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.file_guard import Contents, FileGuard, OutputFile
from qpdsl.cli.proposals import complete_runs
from qpdsl.cli.shared_options import FileName
from qpdsl.errors import UsageError

# Where a page about several runs goes.
_SEVERAL = "comparison.html"


@click.command()
@click.argument(
    "runs",
    metavar="TRACE|RUN...",
    nargs=-1,
    required=True,
    type=FileName(dash="a report is made of saved runs, or of a file that `qpdsl run … --trace FILE` wrote"),
    shell_complete=complete_runs,
)
@click.option(
    "--output",
    metavar="FILE",
    type=FileName(dash="a report has a file of its own"),
    help=f"Where it goes.  [default: TRACE.html, .json; RUN.html; {_SEVERAL}]",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier report.")
@click.option(
    "--first-divergence",
    is_flag=True,
    help="Run the problems of two runs again, and show where each parted, as `qpdsl diff` does.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "chrome"]),
    default="html",
    show_default=True,
    help="`chrome` is what ui.perfetto.dev and chrome://tracing open; a trace alone has it.",
)
def command(runs: tuple[str, ...], output: str | None, overwrite: bool, first_divergence: bool, form: str) -> Exit:
    """Write a page that needs nothing but a browser.

    Of what `qpdsl run … --trace FILE` recorded it shows the plan, a time line of models and batches, the beam trees,
    memory over time, and accuracy against tokens where rows have a right answer.

    Of saved runs, named as in `qpdsl diff`, it shows accuracy with intervals, tokens and seconds, plots of these, and
    each run against the first: differences with their significance, and the problems that flipped.
    """
    if first_divergence and len(runs) != 2:
        raise UsageError("`--first-divergence` is of two saved runs")
    if len(runs) == 1 and _is_file_name(runs[0]):
        target = _of_trace(Path(runs[0]), output, overwrite, form)
    elif form == "html":
        target = _of_runs(runs, output, overwrite, first_divergence=first_divergence)
    else:
        raise UsageError(
            "`--format chrome` is made of a trace, not of saved runs", "`qpdsl run … --trace FILE` writes one"
        )
    put(str(target.path))
    return Exit.OK


def _is_file_name(name: str) -> bool:
    """Whether a name means a trace: saved runs have names of their own, and files with a suffix of their own."""
    from qpdsl.runs.store.run_file import SUFFIX

    path = Path(name)
    return path.suffix != SUFFIX and (path.exists() or len(path.parts) > 1 or bool(path.suffix))


def _of_trace(path: Path, output: str | None, overwrite: bool, form: str) -> OutputFile:
    from qpdsl.cli.runs.dashboard import check_trace
    from qpdsl.executor.events.trace import LineReader, read_trace
    from qpdsl.tui.report.chrome import begins_chrome_trace, chrome_trace
    from qpdsl.tui.report.page import begins_page, page

    check_trace(path)
    guard = FileGuard()
    guard.reads(path, "the trace")
    if form == "html":
        suffix, contents = ".html", Contents("a report of qpdsl", begins_page)
    else:
        suffix, contents = ".json", Contents("a run for a trace viewer", begins_chrome_trace)
    place = path.with_suffix(suffix) if output is None else Path(output)
    target = guard.writes(place, "the report", contents, overwrite=overwrite)
    reader = LineReader()
    events = list(read_trace(path, reader))
    for note in reader.findings.notes():
        say(f"note: {note}")
    notes = reader.findings.notes()
    lines: Iterable[str] = [page(events, notes, path.name)] if form == "html" else chrome_trace(events)
    target.write(lines)
    return target


def _of_runs(names: tuple[str, ...], output: str | None, overwrite: bool, *, first_divergence: bool) -> OutputFile:
    from qpdsl.runs.compare.runs_page import runs_page
    from qpdsl.runs.compare.side import read_side
    from qpdsl.runs.store.run_folder import RunFolder
    from qpdsl.tui.report.page import begins_page

    folder = RunFolder()
    sides = [read_side(name, folder) for name in names]
    guard = FileGuard()
    for side in sides:
        for run in side.runs:
            guard.reads(run.path, f"run `{run.info.id}`")
    usual = f"{sides[0].runs[0].info.id}.html" if len(sides) == 1 else _SEVERAL
    contents = Contents("a report of qpdsl", begins_page)
    target = guard.writes(Path(output or usual), "the report", contents, overwrite=overwrite)
    divergences = None
    if first_divergence:
        from qpdsl.cli.runs.diverging_runs import divergences_of
        from qpdsl.runs.compare.comparison import compare

        divergences = divergences_of(compare(*sides))
    target.write([runs_page(sides, divergences)])
    return target
