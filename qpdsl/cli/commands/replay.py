"""`qpdsl replay`: the dashboard of a run that was recorded."""

from __future__ import annotations

from pathlib import Path

import click

from qpdsl.cli.console import say
from qpdsl.cli.exits import Exit
from qpdsl.cli.shared_options import FileName


@click.command()
@click.argument("trace", type=FileName(dash="a run that goes on is shown by `qpdsl top`"))
@click.option("--speed", type=click.FloatRange(min=0.01, max=1000), default=1.0, show_default=True)
@click.option("--paused", is_flag=True, help="Begin paused.")
@click.option("--end", is_flag=True, help="Begin at the end.")
def command(trace: str, speed: float, paused: bool, end: bool) -> Exit:
    """Open the dashboard on what `qpdsl run … --trace FILE` wrote, also where the file was cut off.

    Space pauses, `.` and `,` step, the arrows left and right jump, `+` and `-` set the speed.
    """
    from qpdsl.cli.runs.dashboard import check_terminal, check_trace, dashboard_failed

    path = Path(trace)
    check_trace(path)
    check_terminal("qpdsl replay")
    from qpdsl.tui.app import DashboardFault, replay_trace

    try:
        replay_trace(path, speed=speed, paused=paused, end=end)
    except DashboardFault as fault:
        say(dashboard_failed(fault))
        return Exit.INTERNAL
    return Exit.OK
