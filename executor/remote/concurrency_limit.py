"""How many requests a server has at once: as many as it bears.

The limit is found as congestion control finds a rate: it rises while that pays and is halved where the server has too
much (additive increase, multiplicative decrease: Chiu and Jain, 1989, with a doubling start as in TCP). Whether it pays
is read off the time a token takes: by Little's law n requests at t seconds a token are n/t tokens a second. Where a
larger n lengthens t as much, it only makes the requests wait inside the server, where nothing can be put before them
any more. That t grows a little is no reason to stop, unlike in Netflix's concurrency-limits: servers of language models
batch.
"""

from __future__ import annotations

import math

_FIRST, _MOST = 8, 256
# A round has at least so many requests.
_ROUND = 8
# A rise of the limit pays where the tokens a second rise by at least this share of it.
_WORTH = 0.25
# At the same limit, a rate below this share of what it was is the work of others on the server.
_WORSE = 0.5
# After a rise that did not pay, so many rounds pass before the next.
_REST = 8


class ConcurrencyLimit:
    """The requests that one server has, and how many it may have.

    `enter` and `leave` enclose a request; `leave` is told how long it took and how many tokens it gave. While a server
    does not answer at all (`lost`), one request at a time goes to see whether it does again.
    """

    def __init__(self, first: int = _FIRST, most: int = _MOST) -> None:
        self.limit = min(first, most)
        self.in_flight = 0
        self._most = most
        self._doubling = True
        self._lost = False
        # Counts changes of the limit: what began under another says nothing about this one.
        self._epoch = 0
        # The limit that paid last, with its tokens a second.
        self._paid: tuple[int, float] | None = None
        self._rest = 0
        # What the round came to: answered requests, their tokens and seconds, and whether all places were taken.
        self._requests = self._tokens = 0
        self._seconds = 0.0
        self._full = False

    @property
    def open(self) -> bool:
        """Whether another request may go."""
        return self.in_flight < (1 if self._lost else self.limit)

    def enter(self) -> int:
        """A request goes; the number is for `leave`."""
        self.in_flight += 1
        self._full = self._full or self.in_flight >= self.limit
        return self._epoch

    def leave(self, epoch: int, seconds: float = 0.0, tokens: int = 0) -> None:
        """A request is back. Without tokens it is no measure."""
        self.in_flight -= 1
        if tokens <= 0 or epoch != self._epoch:
            return
        self._requests += 1
        self._seconds += seconds
        self._tokens += tokens
        if self._requests >= max(_ROUND, self.limit):
            self._judge()

    def overloaded(self, epoch: int) -> None:
        """The server had too much to do, or gave nothing in time. What went out together halves the limit once."""
        if epoch == self._epoch:
            self._doubling = False
            self._paid = None
            self._change(max(1, self.limit // 2))

    def one_at_a_time(self) -> None:
        """The server bears no second request, and never will."""
        self._most = 1
        self._change(1)

    def lost(self) -> None:
        """The server does not answer."""
        self._lost = True

    def found(self) -> None:
        """The server has answered, be it with a refusal."""
        self._lost = False

    def _begin_round(self) -> None:
        self._requests = self._tokens = 0
        self._seconds = 0.0
        self._full = self.in_flight >= self.limit

    def _change(self, limit: int) -> None:
        self.limit = min(limit, self._most)
        self._epoch += 1
        self._begin_round()

    def _judge(self) -> None:
        """A round is over: the limit rises, stays, or goes back."""
        rate, full = self.limit * self._tokens / max(self._seconds, 1e-9), self._full
        if not full:
            # Nobody asked for more.
            self._begin_round()
        elif self._paid is None:
            self._paid = self.limit, rate
            self._rise()
        elif self.limit > self._paid[0]:
            before, known = self._paid
            if rate / known - 1 >= _WORTH * (self.limit / before - 1):
                self._paid = self.limit, rate
                self._rise()
            else:
                self._doubling = False
                self._rest = _REST
                self._change(before)
        elif rate < _WORSE * self._paid[1]:
            self._paid = None
            self._change(max(1, math.ceil(0.75 * self.limit)))
        else:
            self._paid = self.limit, (self._paid[1] + rate) / 2
            self._rest -= 1
            if self._rest <= 0:
                self._rise()
            else:
                self._begin_round()

    def _rise(self) -> None:
        more = self.limit if self._doubling else max(1, math.isqrt(self.limit))
        self._change(self.limit + more)
