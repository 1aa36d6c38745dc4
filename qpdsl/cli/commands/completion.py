"""`qpdsl completion`: the script that teaches a shell to complete command lines of qpdsl."""

from __future__ import annotations

import click

from qpdsl.cli.console import put
from qpdsl.cli.exits import Exit


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> Exit:
    """Print the script that completes commands, options, programs, models and parameters in a SHELL.

    \b
    bash:  echo 'eval "$(qpdsl completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(qpdsl completion zsh)"' >> ~/.zshrc
    fish:  qpdsl completion fish > ~/.config/fish/completions/qpdsl.fish
    """
    from qpdsl.cli.app import cli
    from qpdsl.cli.shells import SHELLS, VARIABLE

    put(SHELLS[shell](cli, {}, "qpdsl", VARIABLE).source(), end="")
    return Exit.OK
