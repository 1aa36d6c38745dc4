"""`qpdsl analyze`: the statistics of earlier runs."""

from __future__ import annotations

import sys

import click

from qpdsl.cli.console import put, say, width_of
from qpdsl.cli.exits import Exit
from qpdsl.cli.shared_options import format_option


@click.command()
@click.argument("name", metavar="[PROGRAM]", required=False)
@click.option("--forget", is_flag=True, help="Drop them: those of PROGRAM, or all.")
@click.option("--rebuild", is_flag=True, help="Make them anew from the saved runs, and drop all others.")
@format_option
def command(name: str | None, forget: bool, rebuild: bool, form: str) -> Exit:
    """Show what programs came to when they ran: rounds, rows, lengths, for one problem on average.

    The planner estimates by them. They are counts and the words of the program's stages, nothing of inputs or answers,
    and lie in the user's cache folder. Every run adds to them, unless it is told `--no-statistics` or the environment
    says `QPDSL_STATISTICS=0`. Runs over rows keep theirs in their own files too (`qpdsl runs`).
    """
    import json

    from qpdsl.errors import UsageError
    from qpdsl.planner.cost.statistics import STATISTICS_FILE
    from qpdsl.planner.explain.measurements import servers_text, statistics_text
    from qpdsl.session.user_cache import changing_statistics, damaged_files, folder, read_statistics

    if rebuild and (forget or name is not None):
        raise UsageError("`--rebuild` makes the statistics of all programs anew; leave out the rest")
    for note in damaged_files():
        say(f"note: {note}")
    if rebuild:
        return _rebuild()
    statistics = read_statistics()
    if name is not None and not any(program.name == name for program in statistics.programs.values()):
        known = sorted({program.name for program in statistics.programs.values()})
        raise UsageError(
            f"there are no statistics of a program `{name}`",
            f"there are some of {', '.join(known)}" if known else "a run makes them",
        )
    if forget:
        with changing_statistics() as changed:
            gone = changed.forget(name)
        say(f"forgot {gone} program{'s' if gone != 1 else ''}")
        return Exit.OK
    shown = {key: program for key, program in statistics.programs.items() if name in (None, program.name)}
    if form == "json":
        data = json.loads(statistics.to_text())
        data["programs"] = {key: data["programs"][key] for key in shown}
        put(json.dumps(data, ensure_ascii=False, indent=2))
    elif shown:
        width = width_of(sys.stdout)
        parts = [statistics_text(program, width) for program in shown.values()]
        used = {model for program in shown.values() for model in program.models.values()}
        servers = {model: times for model, times in statistics.servers.items() if name is None or model in used}
        put("\n\n".join([*parts, servers_text(servers, width)] if servers else parts))
    else:
        say(f"there are no statistics yet in `{folder() / STATISTICS_FILE}`; every `qpdsl run` makes some")
    return Exit.OK


def _rebuild() -> Exit:
    from qpdsl.planner.cost.statistics import Statistics
    from qpdsl.runs.store.measured import statistics_of
    from qpdsl.runs.store.run_file import RunFile, RunFileError
    from qpdsl.runs.store.run_folder import RunFolder
    from qpdsl.session.user_cache import changing_statistics

    folder, rebuilt, runs = RunFolder(), Statistics(), 0
    for id in folder.ids():
        try:
            with RunFile.reading(folder.file(id)) as run:
                own = statistics_of(run)
        except RunFileError as error:
            say(f"warning: {error.message}")
            continue
        rebuilt.join(own)
        runs += bool(own.programs)
    with changing_statistics() as statistics:
        statistics.programs, statistics.losses, statistics.servers = rebuilt.programs, rebuilt.losses, rebuilt.servers
    say(f"the statistics are those of {runs} saved run{'s' * (runs != 1)}")
    return Exit.OK
