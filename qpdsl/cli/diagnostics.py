"""Showing diagnostics on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import click

from qpdsl.grammar.diagnostic import Diagnostic, QpError, more_note, render
from qpdsl.grammar.source import Source


def show(diagnostics: Iterable[Diagnostic], source: Source | None = None) -> None:
    """Each diagnostic with its lines and carets, a blank line between two; colour on a terminal only.

    `source` is the text of those that do not name theirs.
    """
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    text = "\n\n".join(render(diagnostic, _text_of(diagnostic, source), colour=colour) for diagnostic in diagnostics)
    if text:
        click.echo(text, err=True, color=colour)


def _text_of(diagnostic: Diagnostic, source: Source | None) -> Source:
    text = diagnostic.source or source
    assert text is not None
    return text


def show_error(error: QpError) -> None:
    """All that is wrong with a program, and how much of it was left out."""
    show(error.diagnostics, error.source)
    show_more(error)


def show_more(error: QpError) -> None:
    """How many errors were left out, if any."""
    note = more_note(error)
    if note is not None:
        click.echo(f"\n{note}", err=True)
