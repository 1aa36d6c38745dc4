"""`docs/reference/cli.md` is written from the commands themselves. `QPDSL_REGENERATE=1 pytest …` writes it anew."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import groupby

import click

from qpdsl.api.binding import UsingArguments
from qpdsl.cli.app import cli
from qpdsl.cli.exits import Exit
from qpdsl.session.setting import declared, option_of
from tests.support.golden import check
from tests.support.paths import ROOT

INTRODUCTION = """\
`qpdsl --help` lists the commands, `qpdsl COMMAND --help` shows the options of one. Options given on the command line
override [environment variables](environment.md). This page is generated from the commands."""

PYTHON = """\
## In Python

`qp.using` takes these as keywords, and `qp.Session` all but `seed`, `row_timeout` and `priority`."""


def commands(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    """The command and all of its own, in the order of `--help`."""
    if not isinstance(command, click.Group):
        yield context
        return
    if context.parent:
        yield context
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands(inner, click.Context(inner, info_name=name, parent=context))


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def options(context: click.Context) -> Iterator[str]:
    """The options as tables, one for each heading of `--help`."""
    shown = [
        (getattr(param, "heading", ""), record)
        for param in context.command.get_params(context)
        if (record := param.get_help_record(context)) and isinstance(param, click.Option) and "--help" not in record[0]
    ]
    for heading, rows in groupby(shown, key=lambda pair: pair[0]):
        lines = ["", f"**{heading}**", "", "| option | |", "|---|---|"] if heading else ["| option | |", "|---|---|"]
        lines += [f"| `{cell(name)}` | {cell(text)} |" for _, (name, text) in rows]
        yield "\n".join(lines).strip()


def section(context: click.Context) -> str:
    usage = " ".join(context.command.collect_usage_pieces(context))
    help_text = re.split(r"\n\s*\x08", inspect.cleandoc(context.command.help or ""))[0]
    level = "##" if context.parent and not context.parent.parent else "###"
    body = [f"{level} `{context.command_path}`", f"`{context.command_path} {usage}`", help_text.strip()]
    return "\n\n".join([*body, *options(context)])


def keywords() -> str:
    """The settings of a session as a table."""
    lines = ["| keyword | option | default | |", "|---|---|---|---|"]
    for name, known, default in declared(UsingArguments):
        option = f"`{option_of(name, known)}`" if known.on else ""
        usual = known.shown or ("" if default in (None, {}) else f"`{default}`")
        lines.append(f"| `{name}` | {option} | {cell(usual)} | {cell(known.help)} |")
    return "\n".join(lines)


def document() -> str:
    root = click.Context(cli, info_name="qpdsl")
    exits = ["| code | |", "|---:|---|", *(f"| {code.value} | {cell(code.meaning)} |" for code in Exit)]
    sections = [section(context) for context in commands(cli, root)]
    return "\n\n".join(
        ["# Command line", INTRODUCTION, "## Exit codes", "\n".join(exits), *sections, PYTHON, keywords()]
    )


def test_the_page_has_every_command_and_option() -> None:
    check(ROOT / "docs" / "reference" / "cli.md", document())
