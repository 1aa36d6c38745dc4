"""`qpdsl report`: a recorded run as one page, or as a file for a trace viewer."""

from __future__ import annotations

from pathlib import Path

import click

from qpdsl.cli.exits import Exit


@click.command(short_help="Turn a recorded run into one HTML page, or into a file for Perfetto.")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--output", metavar="FILE", type=click.Path(path_type=Path), help="Where it goes.  [default: TRACE.html, .json]"
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "chrome"]),
    default="html",
    show_default=True,
    help="`chrome` is what ui.perfetto.dev and chrome://tracing open.",
)
def command(trace: Path, output: Path | None, form: str) -> Exit:
    """Write what `qpdsl run … --trace FILE` recorded as a page that needs nothing but a browser.

    It shows the plan, a time line of models and batches, the beam trees, memory over time, and accuracy against tokens
    where rows have a right answer.
    """
    from qpdsl.cli.exits import say
    from qpdsl.cli.runs.dashboard import check_trace
    from qpdsl.executor.events.trace import LineReader, read_trace
    from qpdsl.output import check_writable, write_whole
    from qpdsl.tui.report.chrome import chrome_trace
    from qpdsl.tui.report.page import page

    check_trace(trace)
    target = check_writable(output or trace.with_suffix(".html" if form == "html" else ".json"), trace)
    reader = LineReader()
    events = list(read_trace(trace, reader))
    for note in reader.findings.notes():
        say(f"note: {note}")
    write_whole(target, [page(events, reader.findings.notes(), trace.name)] if form == "html" else chrome_trace(events))
    click.echo(str(target))
    return Exit.OK
