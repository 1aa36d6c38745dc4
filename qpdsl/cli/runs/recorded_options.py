"""The options that a saved run was started with, read again from its command line."""

from __future__ import annotations

import click

from qpdsl.cli.runs.run_options import RunOptions
from qpdsl.cli.runs.sweep_options import SweepOptions
from qpdsl.errors import UsageError
from qpdsl.runs.store.run_record import RunRecord


def recorded_options(record: RunRecord) -> RunOptions | SweepOptions:
    """Raises UsageError where no command made the run, or its command line cannot be read again."""
    from qpdsl.cli.app import cli

    name, *given = record.command or ("",)
    if name not in ("run", "eval"):
        raise UsageError("the run was not made by a command, so that it cannot be asked again")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options_of = RunOptions if name == "run" else SweepOptions
    try:
        return options_of(**command.make_context(name, given).params)
    except (click.ClickException, click.exceptions.Exit) as error:
        raise UsageError(f"the command line of the run is one of another version: {error}") from error


def name_of(setting: str) -> str:
    """The name in a `NAME=VALUE` string."""
    return setting.partition("=")[0].strip()
