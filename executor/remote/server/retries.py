"""When a request is sent again, and when a server is given up.

Waits grow exponentially and are drawn at random below their bound ("full jitter": Brooker, Exponential Backoff and
Jitter, AWS Architecture Blog, 2015), so that clients that failed together do not come back together. A server that says
when to come again is heeded, and waits begin there.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

from qpdsl.executor.remote.server.errors import Unreachable
from qpdsl.executor.requests.errors import EngineError, ServerGone

# Seconds: the bound of the first wait, and of any.
_FIRST, _LONGEST = 0.5, 30.0
# A request that the server failed so often, while it served others, is at fault itself.
_MOST_ATTEMPTS = 8
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

    def answered(self) -> None:
        """The server gave a whole answer, be it a refusal."""
        self._answers += 1
        self._answered_at = self._clock()
        self._failing_since = None

    def wait(self, error: Unreachable, attempts: int, answers: int, sent: float | None = None) -> float:
        """Seconds after which a request that failed for the `attempts`-th time is sent again.

        `answers`: what `answers` was when it failed first; `sent`: when it was sent, on the clock: a server that takes
        a request and gives nothing has been silent since then. Raises EngineError for one that alone fails, ServerGone
        where nothing has been answered for longer than the patience.
        """
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = max(now if sent is None else sent, self._answered_at)
        if attempts >= _MOST_ATTEMPTS and self._answers > answers and not error.overloaded:
            raise EngineError(f"{error}; it was asked {attempts} times, and answered others meanwhile")
        failing = now - self._failing_since
        asked = error.retry_after or 0.0
        if asked > self._patience:
            raise ServerGone(f"{error}; it wants to be asked again after {asked:.0f} s")
        if failing >= self._patience:
            raise ServerGone(f"{error}; it has answered nothing for {failing:.0f} s")
        bound = min(_LONGEST, _FIRST * 2 ** min(attempts - 1, 16))
        return asked + self._chance.uniform(0.0, bound)
