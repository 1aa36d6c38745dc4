"""Showing diagnostics on stderr."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable

from qpdsl.cli.console import say, say_rendered, wants_colour
from qpdsl.errors import UserError
from qpdsl.grammar.diagnostic import MAX_DIAGNOSTICS, Diagnostic, QpError, more_note, render
from qpdsl.grammar.source import Source


def show(diagnostics: Iterable[Diagnostic], source: Source | None = None) -> None:
    """The first `MAX_DIAGNOSTICS` with their lines and carets, a blank line between two, and how many more there are.

    `source` is the text of those that do not name theirs.
    """
    every = list(diagnostics)
    colour = wants_colour(sys.stderr)
    shown = [render(one, _text_of(one, source), colour=colour) for one in every[:MAX_DIAGNOSTICS]]
    note = more_note(len(every) - len(shown), every[0].severity if every else "error")
    if shown:
        say_rendered("\n\n".join([*shown, note] if note else shown))


def _text_of(diagnostic: Diagnostic, source: Source | None) -> Source:
    text = diagnostic.source or source
    assert text is not None
    return text


def show_error(error: QpError) -> None:
    """All that is wrong with a program, and how much of it was left out."""
    show(error.diagnostics, error.source)
    show_more(error)


def say_error(error: UserError) -> None:
    """What the user did wrong, each finding on a line, and what to do instead."""
    say("\n".join(f"error: {line}" for line in error.message.split("\n")))
    if error.help is not None:
        say(f"help: {error.help}")


def say_internal(error: Exception) -> None:
    """What went wrong inside, for a report; with QPDSL_DEBUG where it did."""
    debug = os.environ.get("QPDSL_DEBUG")
    if debug:
        say("".join(traceback.format_exception(error)).rstrip())
    what = " ".join(f"{type(error).__name__}: {error}".split())
    say(f"internal error: {what} (please report it{'' if debug else '; QPDSL_DEBUG=1 shows where'})")


def show_more(error: QpError) -> None:
    """How many errors were left out, if any."""
    note = more_note(error.more)
    if note is not None:
        say(f"\n{note}")
