"""The words for a fault of qpdsl that only one row of many met."""

from __future__ import annotations

import traceback
from pathlib import Path

from qpdsl.executor.runtime.instance.user_code import named

_OURS = __name__.partition(".")[0]
_PREFIX = "internal error: "


def internal_error(error: BaseException) -> str:
    """What was raised, and the innermost line of ours that it came through, on one line. It never raises itself."""
    lines = [
        f" ({Path(frame.f_code.co_filename).name}, line {line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] == _OURS
    ]
    return f"{_PREFIX}{named(error)}{lines[-1] if lines else ''}; please report it"


def is_internal(error: str) -> bool:
    """Whether the words of an error are those of a fault of qpdsl."""
    return error.startswith(_PREFIX)
