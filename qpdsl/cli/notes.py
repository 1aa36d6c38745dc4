"""Notes to the user: stdout is for data."""

from __future__ import annotations

import click


def say(text: str) -> None:
    """Prints a note on stderr."""
    click.echo(text, err=True)
