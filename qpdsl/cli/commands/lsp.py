"""`qpdsl lsp`: the language server."""

from __future__ import annotations

import click

from qpdsl.cli.exits import Exit
from qpdsl.cli.shared_options import setting_options
from qpdsl.session.settings import Settings


@click.command()
@setting_options(Settings, "lsp")
def command(allow_read: tuple[str, ...], python: tuple[str, ...], tools: tuple[str, ...]) -> Exit:
    """Serve an editor: errors as you type, columns, completion, definitions, references, renaming, formatting.

    The editor starts this command and speaks the Language Server Protocol with it over stdin and stdout.
    """
    from qpdsl.errors import UsageError
    from qpdsl.session.surroundings import read_surroundings

    surroundings = read_surroundings(allow_read, python, tools=tools)
    try:
        from qpdsl.lsp.server import make_server
    except ImportError as error:
        raise UsageError("the language server needs pygls", "pip install 'pygls>=2'") from error
    make_server(surroundings.environment).start_io()
    return Exit.OK
