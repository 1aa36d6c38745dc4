"""`qpdsl replay`: the dashboard of a run that was recorded, or saved."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from qpdsl.cli.console import say
from qpdsl.cli.exits import Exit
from qpdsl.cli.proposals import complete_runs
from qpdsl.cli.shared_options import FileName, replay_options
from qpdsl.errors import UsageError


@click.command()
@click.argument(
    "trace",
    metavar="TRACE|RUN",
    type=FileName(dash="a run that goes on is shown by `qpdsl top`"),
    shell_complete=complete_runs,
)
@click.option("--speed", type=click.FloatRange(min=0.01, max=1000), default=1.0, show_default=True)
@click.option("--paused", is_flag=True, help="Begin paused.")
@click.option("--end", is_flag=True, help="Begin at the end; a saved run does.")
@replay_options
def command(trace: str, speed: float, paused: bool, end: bool, ids: tuple[str, ...], rows: int | None) -> Exit:
    """Open the dashboard on what `qpdsl run … --trace FILE` wrote, also where the file was cut off.

    Of a saved run, rows are run again for it, over the samples that `--save-samples` saved where there are any: all
    rows with samples, else the first 20. Results, tokens and the seconds of rows
    are the run's; other times are not, and forwards and memory are left out.

    Space pauses, `.` and `,` step, the arrows left and right jump, `+` and `-` set the speed.
    """
    from qpdsl.cli.runs.dashboard import check_terminal, check_trace, dashboard_failed
    from qpdsl.cli.runs.replayed_rows import is_trace_name, trace_of

    with contextlib.ExitStack() as stack:
        if is_trace_name(trace):
            path = Path(trace)
            check_trace(path)
            if ids or rows:
                raise UsageError("`--row` and `--rows` choose rows of a saved run; a trace has those that it has")
            check_terminal("qpdsl replay")
        else:
            check_terminal("qpdsl replay")
            path, end = stack.enter_context(trace_of(trace, ids, rows)), True
        from qpdsl.cli.runs.compared_runs import ComparedRuns
        from qpdsl.tui.app import DashboardFault, replay_trace

        try:
            replay_trace(path, speed=speed, paused=paused, end=end, runs=ComparedRuns())
        except DashboardFault as fault:
            say(dashboard_failed(fault))
            return Exit.INTERNAL
    return Exit.OK
