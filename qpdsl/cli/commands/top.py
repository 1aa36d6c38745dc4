"""`qpdsl top`: the dashboard of what goes on in another terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.grammar.printable import cells, one_line

if TYPE_CHECKING:
    from qpdsl.cli.live import LiveRun
    from qpdsl.tui.state.run_state import RunState


@click.command()
@click.argument("pid", type=int, required=False)
@click.option("--list", "listing", is_flag=True, help="Only list what goes on: process ids, programs and progress.")
def command(pid: int | None, listing: bool) -> Exit:
    """Open the dashboard of a run, sweep or server, the latest one unless PID says which. Leaving does not touch it.

    Every `qpdsl run`, `eval` and `serve` listens on a socket that only its user can reach, in a folder of its own.
    """
    from qpdsl.cli.live import chosen_run, live_runs
    from qpdsl.cli.runs.dashboard import check_terminal, dashboard_failed

    if listing:
        if runs := live_runs():
            put("\n".join(_table([_line(run) for run in runs])))
        else:
            say("nothing of yours is going on: no `qpdsl run`, `eval` or `serve`")
        return Exit.OK
    run = chosen_run(pid)
    check_terminal("qpdsl top")
    from qpdsl.cli.runs.compared_runs import ComparedRuns
    from qpdsl.tui.app import DashboardFault, watch_socket

    try:
        watch_socket(run.socket, ComparedRuns())
    except DashboardFault as fault:
        say(dashboard_failed(fault))
        say(f"the run goes on; `qpdsl top {run.pid}` shows it again")
        return Exit.INTERNAL
    return Exit.OK


def _line(run: LiveRun) -> tuple[str, ...]:
    """What a process is and how far it is; what cannot be read of it is left empty."""
    from qpdsl.executor.events.trace import TraceError
    from qpdsl.tui.state.event_source import standing
    from qpdsl.tui.widgets.figures import clock

    try:
        state = standing(run.socket)
    except (OSError, TraceError):
        return str(run.pid), "", "", "", ""
    process = state.process
    programs = ", ".join(process.programs) if process is not None else ""
    place = f" on {process.place}" if process is not None and process.place else ""
    command = "" if process is None else process.command
    return str(run.pid), command, one_line(programs + place), clock(time.time() - run.started), _progress(state)


def _progress(state: RunState) -> str:
    if state.phase in ("waiting", "preparing"):
        return state.step or "starting"
    if state.command == "serve":
        statuses = [request.status for request in state.requests.values()]
        return f"{statuses.count('running'):,} running, {statuses.count('waiting'):,} waiting"
    if state.command == "eval":
        done = sum(cell.done for cell in state.cells.values())
        rows = sum(cell.rows for cell in state.cells.values())
    else:
        done, rows = state.done, state.total
    failed = f", {state.failed:,} failed" if state.failed else ""
    return f"{done:,} of {rows:,} rows{failed}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns under their titles."""
    every = [("pid", "command", "program", "time", "progress"), *rows]
    widths = [max(cells(row[at]) for row in every) for at in range(len(every[0]))]
    return [
        "  ".join(value + " " * (width - cells(value)) for value, width in zip(row, widths, strict=True)).rstrip()
        for row in every
    ]
