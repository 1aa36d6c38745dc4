"""What commands print: data on stdout, notes on stderr, and nothing on a terminal that it would obey.

Every command prints through here. Notes are for people, so whatever a terminal would obey is escaped in them, wherever
they go. Data stays as it is in a pipe or a file, and is escaped on a terminal; JSON is the same data then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from qpdsl.grammar.ascii_signs import in_ascii, needs_ascii
from qpdsl.grammar.printable import printable

_USUAL_WIDTH = 80


_out: TextIO | None = sys.stdout
_err: TextIO | None = sys.stderr
# What writes notes in place of the stream, such as a progress bar that is drawn below them.
_write: Callable[[str], object] | None = None
# Whether notes that begin as such are left out.
_quiet = False


def keep_streams() -> None:
    """Has commands print on what `sys.stdout` and `sys.stderr` are now.

    A user's Python function that redirects `sys.stdout` later redirects its own output only.
    """
    global _out, _err, _quiet
    _out, _err, _quiet = sys.stdout, sys.stderr, False


def keep_quiet() -> None:
    """Leaves notes out from now on; errors, warnings and what was asked for stay."""
    global _quiet
    _quiet = True


def put(text: str, *, end: str = "\n") -> None:
    """Prints data on stdout. Raises OSError where stdout does not take it, or is closed."""
    if _out is None or _out.closed:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    _out.write(_for_terminal(printable(text), _out) + end if is_terminal(_out) else text + end)
    _out.flush()


def say(text: str, *, end: str = "\n") -> None:
    """Prints a note on stderr."""
    if not (_quiet and text.startswith("note: ")):
        _note(printable(text) + end)


def say_rendered(text: str) -> None:
    """Prints a note that is printable already and may have colours of ours in it."""
    _note(text + "\n")


def is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def wants_colour(stream: TextIO | None) -> bool:
    """Whether to colour a stream: NO_COLOR says no, then FORCE_COLOR yes; else only a terminal that has colours."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def width_of(stream: TextIO | None) -> int | None:
    """The columns of the terminal behind a stream, by COLUMNS where that is set; None for what is no terminal."""
    if stream is None or not is_terminal(stream):
        return None
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH
    except (OSError, ValueError):
        return _USUAL_WIDTH


@contextlib.contextmanager
def notes_through(write: Callable[[str], object]) -> Iterator[None]:
    """Has notes written by `write`, a line or more each without the last newline, while the block runs."""
    global _write
    before, _write = _write, write
    try:
        yield
    finally:
        _write = before


def _note(text: str) -> None:
    # A run is not to fail because nobody can be told how it goes.
    if _write is not None and text.endswith("\n"):
        _write(text[:-1])
    elif _err is not None:
        with contextlib.suppress(OSError, ValueError):
            _err.write(_for_terminal(text, _err))
            _err.flush()


def _for_terminal(text: str, stream: TextIO) -> str:
    """The text, with signs of ours in ASCII where the encoding has nothing better."""
    return in_ascii(text) if not text.isascii() and needs_ascii(stream.encoding) else text
