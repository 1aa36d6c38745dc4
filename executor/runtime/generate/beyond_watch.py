"""Following a sample that goes on past its stop."""

from __future__ import annotations

from qpdsl.executor.requests.request import Finish
from qpdsl.executor.text.stop import StopWatch


class BeyondWatch:
    """An engine `Watch` that lets a sample go on for `beyond` tokens past the stop of its `own` watch.

    Without a stop the sample ends after `limit` tokens, as it would by itself. `length` is how many of its tokens are
    its own, None where neither has come.
    """

    def __init__(self, own: StopWatch, limit: int, beyond: int) -> None:
        self.own = own
        self.length: int | None = None
        self.pushed = 0
        self._limit, self._beyond = limit, beyond
        self._stopped = False

    @property
    def finish(self) -> Finish:
        """Why its own tokens end; for one that has a `length`."""
        return "stop" if self._stopped else "length"

    def push(self, token: int) -> bool:
        self.pushed += 1
        if self.length is not None:
            return self.pushed >= self.length + self._beyond
        self._stopped = self.own.push(token)
        if not self._stopped and self.pushed < self._limit:
            return False
        self.length = self.pushed
        return not self._stopped or not self._beyond
