"""How asking a server fails: it says no, or it does not answer.

ServerError
├── Refused       it understood, and asking again gives the same
└── Unreachable   no answer, half an answer, or one that asks to come again
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

from qpdsl.executor.requests.errors import EngineError, ServerGone

# Asking again may help: too early, too many, in conflict with another (openai-python's list of 4xx, and 425).
PASSING = frozenset({408, 409, 425, 429})
# So much of what a server says of an error is shown, in characters.
MAX_WORDS = 400


class ServerError(Exception):
    """The message says what happened, in words for people, without keys."""


class Refused(ServerError):
    """`status` is the HTTP status; `param` names the field that the server blames, where it does."""

    def __init__(self, message: str, status: int, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    @property
    def is_bad_request(self) -> bool:
        """Whether the fault is in what was asked."""
        return self.status in (400, 422)


class Unreachable(ServerError):
    """`retry_after`: seconds after which the server wants to be asked again, None where it does not say.

    `status` is the HTTP status, None where there was none. `absent`: there was no server to take the request.
    `stalled`: it took the request and then gave nothing. `ended`: it ended a stream before the answer's end.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        status: int | None = None,
        absent: bool = False,
        stalled: bool = False,
        ended: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.status = status
        self.absent = absent
        self.stalled = stalled
        self.ended = ended

    @property
    def busy(self) -> bool:
        """Whether it says that it has too much to do now, or is starting."""
        return self.status in (429, 503)

    @property
    def overloaded(self) -> bool:
        """Whether it has too much to do, as far as that can be seen."""
        return self.stalled or self.busy


# Seconds: the bound of the first wait, and of any.
_FIRST, _LONGEST = 0.5, 30.0
# A request that the server failed so often, while it served others, is at fault itself.
_MAX_FAULTS = 8
# Seconds without any answer after which a server is gone.
PATIENCE = 600.0


class Retries:
    """What is known of how a server answers, and what follows for requests that failed."""

    def __init__(
        self,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        self._patience = patience
        self._clock = clock
        self._chance = chance or random.Random()
        self._failing_since: float | None = None
        self._answered_at = -math.inf
        self._answers = 0

    @property
    def answers(self) -> int:
        """How many requests the server has answered."""
        return self._answers

    @property
    def failing(self) -> float:
        """For how many seconds it has failed all requests; 0 where it answered the last one."""
        return 0.0 if self._failing_since is None else self._clock() - self._failing_since

    def answered(self) -> None:
        """The server gave a whole answer, be it a refusal."""
        self._answers += 1
        self._answered_at = self._clock()
        self._failing_since = None

    def wait(self, error: Unreachable, attempts: int, faults: int = 0, sent: float | None = None) -> float:
        """Seconds after which a request that failed for the `attempts`-th time is sent again.

        `faults`: how often it failed by itself, if others were answered meanwhile, else 0; `sent`: when it was sent,
        on the clock: a server that takes a request and gives nothing has been silent since then. Raises EngineError
        for one that alone fails, ServerGone where nothing has been answered for longer than the patience.
        """
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = max(now if sent is None else sent, self._answered_at)
        if faults >= _MAX_FAULTS:
            raise EngineError(f"{error}; it failed {faults} times while other requests were answered")
        failing = now - self._failing_since
        asked = error.retry_after or 0.0
        if asked > self._patience:
            raise ServerGone(f"{error}; it asks for a retry after {asked:.0f} s")
        if failing >= self._patience:
            raise ServerGone(f"{error}; no response for {failing:.0f} s")
        bound = min(_LONGEST, _FIRST * 2 ** min(attempts - 1, 16))
        # The last try comes when the patience ends, not after it.
        return max(asked, min(asked + self._chance.uniform(0.0, bound), self._patience - failing))
