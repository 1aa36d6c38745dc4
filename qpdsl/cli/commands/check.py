"""`qpdsl check`: what is wrong with programs, without loading a model."""

from __future__ import annotations

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.proposals import complete_programs
from qpdsl.cli.shared_options import format_option, reading_options
from qpdsl.sources.surroundings import read_surroundings


@click.command(short_help="Check programs and report every error, without loading a model.")
@click.argument("targets", metavar="FILE|NAME…", nargs=-1, required=True, shell_complete=complete_programs)
@reading_options
@format_option
def command(targets: tuple[str, ...], allow_read: tuple[str, ...], python: tuple[str, ...], form: str) -> Exit:
    """Check program files, or programs shipped with qpdsl by their NAME; `-` reads a program from stdin.

    Errors and warnings go to stderr, a line for each good file to stdout; with --format json all findings go to stdout
    as one list. Exits with 0 if no file has an error, else with 2.
    """
    from qpdsl.cli.diagnostics import show, show_error, show_more
    from qpdsl.errors import UsageError
    from qpdsl.grammar.diagnostic import QpError, to_json
    from qpdsl.grammar.parse.parser import parse_file
    from qpdsl.planner.check.lower import check
    from qpdsl.planner.values.json_values import dumps
    from qpdsl.sources.programs import folder_of, read_target

    surroundings = read_surroundings(allow_read, python)
    code = Exit.OK
    findings = []
    for target in targets:
        try:
            source = read_target(target)
            diagnostics = check(parse_file(source), surroundings.environment(folder_of(target)))
        except QpError as error:
            code = Exit.USAGE
            if form == "json":
                findings += [to_json(diagnostic, error.source) for diagnostic in error.diagnostics]
                show_more(error)
            else:
                show_error(error)
            continue
        except UsageError as error:
            say(f"error: {error.message}" + (f"\nhelp: {error.help}" if error.help else ""))
            code = Exit.USAGE
            continue
        if form == "json":
            findings += [to_json(diagnostic, source) for diagnostic in diagnostics]
        else:
            show(diagnostics, source)
            put(f"{source.name}: ok")
    if form == "json":
        put(dumps(findings))
    return code
