"""`qpdsl top`: the dashboard of a run that goes on in another terminal."""

from __future__ import annotations

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit


@click.command()
@click.argument("pid", type=int, required=False)
@click.option("--list", "listing", is_flag=True, help="Only list the runs that go on: process ids and sockets.")
def command(pid: int | None, listing: bool) -> Exit:
    """Open the dashboard of a run, the latest one unless PID says which. Leaving it does not touch the run.

    Every `qpdsl run` listens on a socket that only its user can reach, in a folder of its own.
    """
    from qpdsl.cli.live import live_runs
    from qpdsl.cli.runs.dashboard import check_terminal, dashboard_failed
    from qpdsl.errors import UsageError

    runs = live_runs()
    if listing:
        for run in runs:
            put(f"{run.pid}\t{run.socket}")
        return Exit.OK
    if not runs:
        raise UsageError("no run of yours is going on", "`qpdsl run … --tui` starts one and watches it")
    if pid is not None:
        runs = [run for run in runs if run.pid == pid]
        if not runs:
            raise UsageError(f"no run of yours has the process id {pid}", "`qpdsl top --list` lists them")
    check_terminal("qpdsl top")
    from qpdsl.tui.app import DashboardFault, watch_socket

    try:
        watch_socket(runs[0].socket)
    except DashboardFault as fault:
        say(dashboard_failed(fault))
        say(f"the run goes on; `qpdsl top {runs[0].pid}` shows it again")
        return Exit.INTERNAL
    return Exit.OK
