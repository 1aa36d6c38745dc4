"""The options that a saved run was started with, read again from its command line."""

from __future__ import annotations

from pathlib import Path

import click

from qpdsl.cli.runs.run_options import RunOptions
from qpdsl.cli.runs.sweep_options import SweepOptions
from qpdsl.errors import UsageError
from qpdsl.grammar.suggest import listed
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RunRecord
from qpdsl.session.setting import given, option_of


def recorded_options(record: RunRecord, path: Path) -> RunOptions | SweepOptions:
    """Those of the run in the file `path`.

    Raises UsageError where no command made the run, where its command line cannot be read again or names tools, which
    would be called again, and where it asks for what a file may not that is none of the user's own runs.
    """
    from qpdsl.cli.app import cli

    name, *given = record.command or ("",)
    if name not in ("run", "eval"):
        raise UsageError("the run was not made by a command, so that it cannot be asked again")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options_of = RunOptions if name == "run" else SweepOptions
    try:
        options = options_of(**command.make_context(name, given).params)
    except (click.ClickException, click.exceptions.Exit) as error:
        raise UsageError(f"the command line of the run is one of another version: {error}") from error
    _check_grants(options, path)
    if options.tools:
        raise UsageError("the run was started with `--tool`, and to ask it again would call tools again")
    return options


def _check_grants(options: RunOptions | SweepOptions, path: Path) -> None:
    folder = RunFolder().path
    if path.resolve().parent == folder.resolve():
        return
    asked = [option_of(name, known) for name, known in given(options) if known.grants]
    asked += ["--grader python:…"] if (options.grader or "").startswith("python:") else []
    if asked:
        raise UsageError(
            f"`{path}` is none of your own runs, and its command line has {listed(asked, last='and')}",
            f"that runs code, or reads and writes files; to permit it, copy the run into `{folder}`",
        )


def name_of(setting: str) -> str:
    """The name in a `NAME=VALUE` string."""
    return setting.partition("=")[0].strip()
