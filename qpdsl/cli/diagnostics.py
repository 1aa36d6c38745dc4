"""Showing diagnostics on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import click

from qpdsl.grammar.diagnostic import Diagnostic, QpError, more_note
from qpdsl.grammar.render import render
from qpdsl.grammar.source import Source


def show(diagnostics: Iterable[Diagnostic], source: Source) -> None:
    """Each diagnostic with its lines and carets, a blank line between two; colour on a terminal only."""
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    text = "\n\n".join(render(diagnostic, source, colour=colour) for diagnostic in diagnostics)
    if text:
        click.echo(text, err=True, color=colour)


def show_error(error: QpError) -> None:
    """All that is wrong with a program, and how much of it was left out."""
    show(error.diagnostics, error.source)
    show_more(error)


def show_more(error: QpError) -> None:
    """How many errors were left out, if any."""
    note = more_note(error)
    if note is not None:
        click.echo(f"\n{note}", err=True)
