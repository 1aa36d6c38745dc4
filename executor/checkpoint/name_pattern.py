"""Regexes that a configuration names modules by, which a stranger has written.

Python's `re` may take ages for a name of thirty letters, and nothing stops it. The `regex` package reads the same
patterns, and ends after a time.
"""

from __future__ import annotations

import re
from typing import Any

import regex

from qpdsl.executor.checkpoint.errors import CheckpointError

# For one name; usual patterns take a hundred-thousandth.
_SECONDS = 1.0


def check_pattern(pattern: str) -> None:
    """Raises CheckpointError where it is no regex."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise CheckpointError(f"it has a regex that cannot be read, `{pattern}`: {error}") from error


def matched(pattern: str, name: str, *, whole: bool = False) -> Any:
    """The match of a name from its beginning, or of the `whole` name; None without one. Raises CheckpointError."""
    try:
        return (regex.fullmatch if whole else regex.match)(pattern, name, timeout=_SECONDS)
    except TimeoutError:
        raise CheckpointError(f"it has a regex that takes more than {_SECONDS:g} s for `{name}`: `{pattern}`") from None
    except (regex.error, RecursionError, OverflowError) as error:
        raise CheckpointError(f"it has a regex that cannot be read, `{pattern}`: {error}") from error
