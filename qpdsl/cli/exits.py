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
    Exit.ROW_FAILED: "a row failed, the others are done; `fmt --check`: a file would change; "
    "`diff --fail-if worse`: the second run is worse",
    Exit.USAGE: "bad usage, a bad program, or a file that cannot be written",
    Exit.DATA: "bad input data",
    Exit.MODEL: "a model cannot be loaded",
    Exit.MEMORY: "the system gives no more memory",
    Exit.SERVER: "a server does not answer any more; finished rows are kept",
    Exit.BUDGET: "the budget is spent; finished rows are kept",
    Exit.INTERNAL: "a fault in qpdsl itself",
    Exit.INTERRUPTED: "interrupted by Ctrl-C or SIGTERM; finished rows are kept",
    Exit.CLOSED: "whoever read stdout has gone",
}


def table() -> str:
    """The codes as a block of text for a command's help."""
    return "\n".join(f"{code.value:>5}  {code.meaning}" for code in Exit)
