"""`qpdsl top`: the dashboard of a run that goes on in another terminal."""

from __future__ import annotations

import click

from qpdsl.cli.exits import Exit


@click.command(short_help="Watch a run that goes on in another terminal.")
@click.argument("pid", type=int, required=False)
@click.option("--list", "listing", is_flag=True, help="Only list the runs that go on: process ids and sockets.")
def command(pid: int | None, listing: bool) -> Exit:
    """Open the dashboard of a run, the latest one unless PID says which. Leaving it does not touch the run.

    Every `qpdsl run` listens on a socket that only its user can reach, in a folder of its own.
    """
    from qpdsl.cli.live import runs
    from qpdsl.cli.runs.dashboard import check_terminal
    from qpdsl.errors import UsageError

    found = runs()
    if listing:
        for run in found:
            click.echo(f"{run.pid}\t{run.socket}")
        return Exit.OK
    if not found:
        raise UsageError("no run of yours is going on", "`qpdsl run … --tui` starts one and watches it")
    if pid is not None:
        found = [run for run in found if run.pid == pid]
        if not found:
            raise UsageError(f"no run of yours has the process id {pid}", "`qpdsl top --list` lists them")
    check_terminal("qpdsl top")
    from qpdsl.tui.app import watch_socket

    watch_socket(found[0].socket)
    return Exit.OK
