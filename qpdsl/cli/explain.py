"""`qpdsl explain`: the plan of a program."""

from __future__ import annotations

import click

from qpdsl.cli.exits import Exit
from qpdsl.cli.options import format_option, program_options
from qpdsl.cli.surroundings import surroundings


@click.command(short_help="Show the plan of a program, without loading a model.")
@program_options
@format_option
def command(
    target: str | None,
    pipeline: str | None,
    program: str | None,
    settings: tuple[str, ...],
    models: tuple[str, ...],
    allow_read: tuple[str, ...],
    python: tuple[str, ...],
    form: str,
) -> Exit:
    """Show how a program will run: its operators as a tree, last first, with estimates of the rows they make."""
    import json

    from qpdsl.arguments import bind, parse_settings, with_defaults
    from qpdsl.bounds import check_options
    from qpdsl.cli.sources import load_program
    from qpdsl.planner.explain import explain, explain_json
    from qpdsl.planner.plan import plan

    lowered = load_program(target, pipeline, program, surroundings(allow_read, python, models))
    physical = plan(with_defaults(lowered, parse_settings(lowered.params, settings, lowered.name)))
    check_options(physical, bind([param for param in physical.params if param.default is not None], {}))
    if form == "json":
        click.echo(json.dumps(explain_json(physical), ensure_ascii=False, indent=2))
    else:
        click.echo(explain(physical))
    return Exit.OK
