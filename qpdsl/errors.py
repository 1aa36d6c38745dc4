"""What goes wrong on the user's side of a run, and the words in which the user is told.

    Exception
    └── UserError        a message without a traceback
        ├── UsageError   options, arguments of a program, files to read a program from or to write to
        ├── DataError    the input data
        └── LoadError    what is not there in the end, for no fault of the command's

Three errors are defined elsewhere: a program that is not valid is a `grammar.diagnostic.QpError`, a model that does not
load an `executor.checkpoint.errors.ModelError`, and a value that a parameter does not take an
`arguments.ArgumentError`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any, TypeVar, cast

from qpdsl.grammar.printable import printable

# How torch, the dynamic linker and Python say that there is no memory, or none for a thread.
_NO_MEMORY = ("allocate memory", "out of memory", "unable to mmap", "failed to map segment", "can't start new thread")
C = TypeVar("C", bound=Callable[..., Any])


class UserError(Exception):
    """The message is one line, or one line a finding; `help` says what to do instead."""

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.help = help


class UsageError(UserError):
    """Options, arguments or files that cannot be used."""


class LoadError(UserError):
    """Models did not load where they were to run."""


class DataError(UserError):
    """Input data that cannot be used; every line of the message is one finding."""


def reason(error: OSError) -> str:
    """Why the operating system refused, in lower case, without the path."""
    text = error.strerror or type(error).__name__
    return text[:1].lower() + text[1:]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the operating system, or a GPU, refused memory or a thread. Libraries say it in words of their own."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    text = str(error).lower()
    return isinstance(error, (RuntimeError, OSError, ImportError)) and any(words in text for words in _NO_MEMORY)


def meets_every_row(error: Exception) -> bool:
    """Whether what one row met says nothing of that row: a mistake of the user's, or no memory or disk left."""
    return isinstance(error, UserError | OSError) or is_out_of_memory(error)


def unknown(name: str, known: Iterable[str], lead: str) -> str:
    """The message for an unknown name: `lead` and the name, then the nearest known name or else all of them."""
    # Only here: every command imports this file, and few come to this message.
    from qpdsl.grammar.suggest import closest, listed

    names = list(known)
    guess = closest(name, names)
    if guess is not None:
        return f"{lead} `{shorten(name)}`; did you mean `{guess}`?"
    return f"{lead} `{shorten(name)}`" + (f"; there is {listed(names, last='and')}" if names else "")


def installing(extra: str) -> str:
    """The command that installs an extra of the package from where this one came: a folder, an address or the index."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlparse

    try:
        origin = json.loads(distribution("qpdsl").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url, source = origin.get("url", ""), origin.get("vcs_info", {})
    kind, commit = source.get("vcs"), source.get("commit_id")
    if url.startswith("file:") and not kind:
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"`pip install {editable}'{unquote(urlparse(url).path)}[{extra}]'`"
    place = f" @ {f'{kind}+' if kind else ''}{url}{f'@{commit}' if commit else ''}" if url else ""
    return f"`pip install 'qpdsl[{extra}]{place}'`"


def shorten(text: str, limit: int = 60) -> str:
    """A text short enough to stand in a message, on one line."""
    beginning = text[: 16 * limit]
    line = printable(" ".join(beginning.split()))
    return line if len(line) <= limit and len(beginning) == len(text) else line[: limit - 1] + "…"


def naming_keywords(function: C, names: Collection[str] = ()) -> C:
    """The function, whose TypeError for a keyword that it does not take names the nearest one that it does.

    `names` are the keywords that it takes, where it takes any itself.
    """
    code = function.__code__
    known = names or code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]

    @wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        refuse_keywords(function.__qualname__.removesuffix(".__init__"), keywords, known)
        return function(*args, **keywords)

    return cast(C, checked)


def refuse_keywords(callee: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises TypeError for a keyword that is not known, with the nearest one that is."""
    for name in given:
        if name not in known:
            lead = f"`{callee}` takes no keyword"
            raise TypeError(unknown(name, [other for other in known if other != "self"], lead))
