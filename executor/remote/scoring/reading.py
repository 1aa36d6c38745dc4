"""One question to a server whose answer is numbers."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qpdsl.executor.requests.request import Calls

# A row for each place that was asked about; None for a number that the server did not tell.
Values = tuple[tuple[float | None, ...], ...]


class BadAnswer(Exception):
    """An answer that does not hold what was asked for; the message says what is wrong with it, after "the server"."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A POST of `body` to `path`, which is what a `Connection` takes.

    `read` makes numbers of the JSON that is answered. It raises BadAnswer.
    """

    path: str
    body: Mapping[str, Any]
    read: Callable[[Any], Values]


# Sends a reading, or finds what was kept of it. Raises EngineError.
Read = Callable[[Reading], Awaitable[tuple[Values, Calls]]]


def field(answer: Any, *names: str | int) -> Any:
    """What an answer has under these names, one inside the other. Raises BadAnswer where there is nothing."""
    for name in names:
        try:
            answer = answer[name]
        except (KeyError, IndexError, TypeError):
            shown = ".".join(map(str, names))
            raise BadAnswer(f"left `{shown}` out of its answer") from None
    return answer


def number(value: Any) -> float:
    """A finite number of an answer. Raises BadAnswer."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadAnswer(f"answered {str(value)[:40]!r} in the place of a number")
    return float(value)
