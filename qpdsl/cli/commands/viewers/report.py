"""`qpdsl report`: a recorded run as one page, or as a file for a trace viewer."""

from __future__ import annotations

from pathlib import Path

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.file_guard import Contents, FileGuard
from qpdsl.cli.shared_options import FileName


@click.command(short_help="Turn a recorded run into one HTML page, or into a file for Perfetto.")
@click.argument("trace", type=FileName(dash="a report is made of a file that `qpdsl run … --trace FILE` wrote"))
@click.option(
    "--output",
    metavar="FILE",
    type=FileName(dash="a report has a file of its own"),
    help="Where it goes.  [default: TRACE.html, .json]",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier report.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "chrome"]),
    default="html",
    show_default=True,
    help="`chrome` is what ui.perfetto.dev and chrome://tracing open.",
)
def command(trace: str, output: str | None, overwrite: bool, form: str) -> Exit:
    """Write what `qpdsl run … --trace FILE` recorded as a page that needs nothing but a browser.

    It shows the plan, a time line of models and batches, the beam trees, memory over time, and accuracy against tokens
    where rows have a right answer.
    """
    from qpdsl.cli.runs.dashboard import check_trace
    from qpdsl.executor.events.trace import LineReader, read_trace
    from qpdsl.tui.report.chrome import begins_chrome_trace, chrome_trace
    from qpdsl.tui.report.page import begins_page, page

    path = Path(trace)
    check_trace(path)
    guard = FileGuard()
    guard.reads(path, "the trace")
    if form == "html":
        suffix, contents = ".html", Contents("a report of qpdsl", begins_page)
    else:
        suffix, contents = ".json", Contents("a run for a trace viewer", begins_chrome_trace)
    target = guard.writes(
        path.with_suffix(suffix) if output is None else Path(output), "the report", contents, overwrite=overwrite
    )
    reader = LineReader()
    events = list(read_trace(path, reader))
    for note in reader.findings.notes():
        say(f"note: {note}")
    target.write([page(events, reader.findings.notes(), path.name)] if form == "html" else chrome_trace(events))
    put(str(target.path))
    return Exit.OK
