"""Exit codes: what the status of a command says."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What a command's exit status says."""

    OK = 0
    ROW_FAILED = 1
    USAGE = 2
    DATA = 3
    MODEL = 4
    MEMORY = 5
    SERVER = 6
    BUDGET = 7
    INTERNAL = 70
    INTERRUPTED = 130
    CLOSED = 141

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Exit.OK: "ok",
    Exit.ROW_FAILED: "some rows failed; `verify`: a row differs; `whatif`: some samples are missing; "
    "`fmt --check`: a file would change; `diff --fail-if worse`: the second run is worse",
    Exit.USAGE: "bad usage, an invalid program, or a file that cannot be written",
    Exit.DATA: "bad input data",
    Exit.MODEL: "a model could not be loaded",
    Exit.MEMORY: "out of memory",
    Exit.SERVER: "a server stopped responding; finished rows are saved",
    Exit.BUDGET: "the remote budget is spent; finished rows are saved",
    Exit.INTERNAL: "internal error",
    Exit.INTERRUPTED: "interrupted by Ctrl-C or SIGTERM; finished rows are saved",
    Exit.CLOSED: "stdout was closed",
}


def table() -> str:
    """The codes as a block of text for a command's help."""
    return "\n".join(f"{code.value:>5}  {code.meaning}" for code in Exit)
