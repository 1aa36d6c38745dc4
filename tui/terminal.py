"""The terminal that the dashboard draws on: what may reach it, whether it keeps up, and how it is left."""

from __future__ import annotations

import contextlib
import select
import sys
import termios
from collections.abc import Iterator

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from qpdsl.grammar.ascii_signs import in_ascii, needs_ascii
from qpdsl.grammar.printable import is_printable

# The mouse, pasting and the keys as they were, the screen of before, and the cursor.
_RESET = "\033[?1000l\033[?1003l\033[?1015l\033[?1006l\033[?2004l\033[<u\033[?1049l\033[0m\033[?25h"
_INSTEAD = "\N{REPLACEMENT CHARACTER}"


class PrintableOnly(LineFilter):
    """Puts a sign in the place of each character that a terminal would obey, so that a line keeps its width.

    Texts from outside are made printable where a screen takes them up; this catches what was forgotten there, and what
    comes from elsewhere, such as a text that was pasted into a field.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [segment if segment.control else Segment(_masked(segment.text), segment.style) for segment in segments]


class AsciiOnly(LineFilter):
    """For a terminal whose encoding has no lines and blocks: a sign in ASCII in the place of each of ours."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [segment if segment.control else Segment(_plain(segment.text), segment.style) for segment in segments]


def _masked(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if is_printable(char, text[at - 1] if at else "") else _INSTEAD * cell_len(char)
        for at, char in enumerate(text)
    )


def _plain(text: str) -> str:
    plain = in_ascii(text)
    return plain if plain.isascii() else "".join(char if char.isascii() else "?" * cell_len(char) for char in plain)


# Textual draws on the standard error stream, and keeps what a filter gave by the filter.
_PRINTABLE_ONLY, _ASCII_ONLY = PrintableOnly(), AsciiOnly()


def last_filters() -> list[LineFilter]:
    """The last look at every line before it is drawn."""
    return [_PRINTABLE_ONLY, *([_ASCII_ONLY] if needs_ascii(getattr(sys.__stderr__, "encoding", None)) else [])]


def is_behind() -> bool:
    """Whether the terminal takes nothing more now."""
    try:
        return sys.__stderr__ is not None and not select.select([], [sys.__stderr__], [], 0)[1]
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def as_it_was() -> Iterator[None]:
    """Puts the terminal back where an error gets out of Textual, which does so itself otherwise."""
    try:
        before = termios.tcgetattr(sys.__stdin__.fileno()) if sys.__stdin__ is not None else None
    except (OSError, ValueError, termios.error):
        before = None
    try:
        yield
    except BaseException:
        if before is not None and sys.__stderr__ is not None:
            with contextlib.suppress(OSError, ValueError, termios.error):
                termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, before)  # type: ignore[union-attr]
                sys.__stderr__.write(_RESET)
                sys.__stderr__.flush()
        raise
