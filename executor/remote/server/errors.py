"""How asking a server fails: it says no, or it does not answer.

ServerError
├── Refused       it understood, and asking again gives the same
└── Unreachable   no answer, half an answer, or one that asks to come again
"""

from __future__ import annotations

# Asking again may help: too early, too many, in conflict with another (openai-python's list of 4xx, and 425).
PASSING = frozenset({408, 409, 425, 429})
# So much of what a server says of an error is shown, in characters.
MOST_WORDS = 400


class ServerError(Exception):
    """The message says what happened, in words for people, without keys."""


class Refused(ServerError):
    """`status` is the HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(ServerError):
    """`retry_after`: seconds after which the server wants to be asked again, None where it does not say.

    `status` is the HTTP status, None where there was none. `stalled`: it took the request and then gave nothing.
    """

    def __init__(
        self, message: str, *, retry_after: float | None = None, status: int | None = None, stalled: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.status = status
        self.stalled = stalled

    @property
    def overloaded(self) -> bool:
        """Whether it has too much to do, as far as that can be seen."""
        return self.stalled or self.status in (429, 503)
