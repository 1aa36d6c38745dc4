"""`qpdsl replay`: the dashboard of a run that was recorded."""

from __future__ import annotations

from pathlib import Path

import click

from qpdsl.cli.exits import Exit


@click.command(short_help="Watch a recorded run: at any speed, paused, step by step.")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--speed", type=click.FloatRange(min=0.01, max=1000), default=1.0, show_default=True)
@click.option("--paused", is_flag=True, help="Begin paused.")
@click.option("--end", is_flag=True, help="Begin at the end.")
def command(trace: Path, speed: float, paused: bool, end: bool) -> Exit:
    """Open the dashboard on what `qpdsl run … --trace FILE` wrote, also where the file was cut off.

    Space pauses, `.` and `,` step, the arrows left and right jump, `+` and `-` set the speed.
    """
    from qpdsl.cli.runs.dashboard import check_terminal, check_trace

    check_trace(trace)
    check_terminal("qpdsl replay")
    from qpdsl.tui.app import replay_trace

    replay_trace(trace, speed=speed, paused=paused, end=end)
    return Exit.OK
