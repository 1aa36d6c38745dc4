"""What goes wrong on the user's side of a run, in words for the user.

    Exception
    └── UserError        a message without a traceback
        ├── UsageError   options, arguments of a program, files to read a program from or to write to
        └── DataError    the input data

A program that does not hold is a `grammar.diagnostic.QpError`, a model that does not load a
`executor.runtime.loading.ModelError`.
"""

from __future__ import annotations


class UserError(Exception):
    """The message is one line, or one line a finding; `help` says what to do instead."""

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.help = help


class UsageError(UserError):
    """Options, arguments or files that cannot be used as given."""


class DataError(UserError):
    """Input data that cannot be used; every line of the message is one finding."""


def reason(error: OSError) -> str:
    """Why the operating system refused, in lower case, without the path."""
    text = error.strerror or type(error).__name__
    return text[:1].lower() + text[1:]
