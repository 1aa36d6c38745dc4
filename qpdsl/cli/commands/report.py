"""`qpdsl report`: a recorded run as one page or for a trace viewer, and saved runs beside each other as one page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.file_guard import Contents, FileGuard, OutputFile
from qpdsl.cli.proposals import complete_runs
from qpdsl.cli.shared_options import FileName, replay_options
from qpdsl.errors import UsageError

# Where a page about several runs goes.
_SEVERAL = "comparison.html"


@click.command()
@click.argument(
    "runs",
    metavar="[TRACE|RUN|PID]...",
    nargs=-1,
    type=FileName(dash="a report is made of saved runs, or of a file that `qpdsl run … --trace FILE` wrote"),
    shell_complete=complete_runs,
)
@click.option(
    "--output",
    metavar="FILE",
    type=FileName(dash="a report has a file of its own"),
    help=f"Where it goes.  [default: TRACE.html, .json; RUN.html; RUN-trees.html; {_SEVERAL}]",
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
    help="`chrome` is what ui.perfetto.dev and chrome://tracing open: of a trace, or with --trees.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Serve the page of what goes on now, at an address of this machine that only you are told.",
)
@click.option("--trees", is_flag=True, help="Of a saved run, make the page that a trace would give.")
@replay_options
def command(
    runs: tuple[str, ...],
    output: str | None,
    overwrite: bool,
    first_divergence: bool,
    form: str,
    live: bool,
    trees: bool,
    ids: tuple[str, ...],
    rows: int | None,
) -> Exit:
    """Write a page that needs nothing but a browser.

    Of what `qpdsl run … --trace FILE` recorded it shows the plan, a time line of models and batches, the beam trees,
    memory over time, and accuracy against tokens where rows have a right answer. With `--trees` it shows so of a saved
    run: rows are run again, over the samples that `--save-samples` saved where there are any, all rows with samples,
    else the first 20. What only the run itself measured is left out: where the time went, forwards, memory.

    Of saved runs, named as in `qpdsl diff`, it shows accuracy with intervals, tokens and seconds, plots of these, and
    each run against the first: differences with their significance, and the problems that flipped.

    With `--live` it serves the first of these pages of a run that goes on, the latest or that with the process id PID,
    and says where, until it is interrupted.
    """
    if live:
        if output or overwrite or first_divergence or trees or ids or rows or form != "html":
            raise UsageError("`--live` serves a page, and takes no other option")
        return _serve(runs)
    if not runs:
        raise UsageError("a report is made of a trace or of saved runs", "`qpdsl runs` lists these; or `--live`")
    if first_divergence and len(runs) != 2:
        raise UsageError("`--first-divergence` is of two saved runs")
    from qpdsl.cli.runs.dashboard import check_trace
    from qpdsl.cli.runs.replayed_rows import is_trace_name, trace_of
    from qpdsl.runs.store.run_folder import RunFolder

    is_trace = len(runs) == 1 and is_trace_name(runs[0])
    if (ids or rows) and not trees:
        raise UsageError("`--row` and `--rows` choose the rows of `--trees`")
    if trees and (is_trace or len(runs) > 1 or first_divergence):
        raise UsageError("`--trees` is of one saved run")
    if is_trace:
        path = Path(runs[0])
        check_trace(path)
        target = _target(path, path, output, overwrite, form)
        _write_trace(path, path.name, target, form)
    elif trees:
        saved = RunFolder().find(runs[0])
        target = _target(saved, Path(f"{saved.stem}-trees"), output, overwrite, form)
        with trace_of(runs[0], ids, rows) as trace:
            _write_trace(trace, saved.stem, target, form)
    elif form == "html":
        target = _of_runs(runs, output, overwrite, first_divergence=first_divergence)
    else:
        raise UsageError("`--format chrome` is made of a trace, or with `--trees`")
    put(str(target.path))
    return Exit.OK


def _serve(names: tuple[str, ...]) -> Exit:
    """Serves the page of a run that goes on."""
    from qpdsl.cli.live import chosen_run
    from qpdsl.cli.runs.compared_runs import ComparedRuns
    from qpdsl.tui.report.live_page import LivePage

    if len(names) > 1 or not all(name.isdigit() for name in names):
        raise UsageError("`--live` takes one process id", "`qpdsl top --list` lists them")
    run = chosen_run(int(names[0]) if names else None)
    page = LivePage(run.socket, f"process {run.pid}", ComparedRuns())
    put(page.address)
    say("served to this machine alone; Ctrl-C ends it, and leaves the run as it is")
    with contextlib.suppress(KeyboardInterrupt):
        page.serve()
    return Exit.OK


def _target(read: Path, usual: Path, output: str | None, overwrite: bool, form: str) -> OutputFile:
    """Where a report goes that is made of one file; `usual` is its name but for the ending."""
    from qpdsl.tui.report.chrome import begins_chrome_trace
    from qpdsl.tui.report.page import begins_page

    guard = FileGuard()
    guard.reads(read, "the trace")
    if form == "html":
        suffix, contents = ".html", Contents("a report of qpdsl", begins_page)
    else:
        suffix, contents = ".json", Contents("a run for a trace viewer", begins_chrome_trace)
    place = usual.with_suffix(suffix) if output is None else Path(output)
    return guard.writes(place, "the report", contents, overwrite=overwrite)


def _write_trace(path: Path, title: str, target: OutputFile, form: str) -> None:
    from qpdsl.cli.runs.compared_runs import ComparedRuns
    from qpdsl.executor.events.trace import LineReader, read_trace
    from qpdsl.tui.report.chrome import chrome_trace
    from qpdsl.tui.report.page import page

    reader = LineReader()
    events = list(read_trace(path, reader))
    notes = reader.findings.notes()
    for note in notes:
        say(f"note: {note}")
    lines: Iterable[str] = [page(events, notes, title, ComparedRuns())] if form == "html" else chrome_trace(events)
    target.write(lines)


def _of_runs(names: tuple[str, ...], output: str | None, overwrite: bool, *, first_divergence: bool) -> OutputFile:
    from qpdsl.runs.compare.runs_page import runs_page
    from qpdsl.runs.compare.side import read_side
    from qpdsl.runs.store.run_folder import RunFolder
    from qpdsl.tui.report.page import begins_page

    folder = RunFolder()
    sides = [read_side(name, folder) for name in names]
    guard = FileGuard()
    for side in sides:
        if not side.problems:
            say(f"note: `{side.name}` has no finished row")
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
