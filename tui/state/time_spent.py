"""Where the time of a run went, and what memory it was short of, by what its engines and servers report."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from qpdsl.executor.events.events import EngineFigures, EngineStepped

Spent = Literal["decode", "prefill", "verifier", "server", "Python", "idle"]
SPENT: tuple[Spent, ...] = get_args(Spent)


@dataclass(slots=True)
class TimeSpent:
    """Seconds by what they were spent on, from `until` None on, which is when the models were loaded.

    A step of a model that writes is shared out between prefill and decode by its tokens; one of a model that only
    judges is the verifier's. Where steps overlap each second counts once. Between two steps a server is waited for
    while requests are there; else Python works while rows run, and nothing does where none runs.
    """

    until: float | None = None
    seconds: dict[Spent, float] = field(default_factory=lambda: dict.fromkeys(SPENT, 0.0))
    # When requests were at a server: from, to.
    _asked: deque[tuple[float, float]] = field(default_factory=deque)

    def begin(self, at: float) -> None:
        self.until = at if self.until is None else self.until

    def step(self, event: EngineStepped, *, judges: bool, rows: int) -> None:
        """A step of a model ended, which writes or `judges`; so many rows of the input run."""
        report = event.report
        assert isinstance(report, EngineFigures)
        begun = event.at - report.others.get("seconds", 0.0)
        if self.until is None:
            self.until = begun
        self._between(self.seconds, begun, rows)
        while self._asked and self._asked[0][1] <= begun:
            self._asked.popleft()
        own = max(event.at - max(begun, self.until), 0.0)
        computed = report.prefill_tokens + report.decode_tokens
        decode = own * report.decode_tokens / computed if computed else 0.0
        if judges:
            self.seconds["verifier"] += own
        else:
            self.seconds["decode"] += decode
            self.seconds["prefill"] += own - decode
        self.until = max(self.until, event.at)

    def asked(self, begun: float, end: float) -> None:
        """Requests were at a server from then to then."""
        if self._asked and begun <= self._asked[-1][1]:
            first, last = self._asked.pop()
            self._asked.append((min(first, begun), max(last, end)))
        else:
            self._asked.append((begun, end))

    def shares(self, now: float, rows: int) -> Mapping[Spent, float]:
        """Parts of the time so far, which are 1 together; none where nothing was reported yet."""
        seconds = dict(self.seconds)
        if self.until is not None:
            self._between(seconds, now, rows)
        whole = sum(seconds.values())
        return {name: own / whole for name, own in seconds.items() if own} if whole else {}

    def _between(self, seconds: dict[Spent, float], end: float, rows: int) -> None:
        """Adds the time from `until` to a step's begin."""
        assert self.until is not None
        if end <= self.until:
            return
        asked = sum(max(min(last, end) - max(first, self.until), 0.0) for first, last in self._asked)
        seconds["server"] += asked
        seconds["Python" if rows else "idle"] += end - self.until - asked


@dataclass(frozen=True, slots=True)
class Shortage:
    """Sequences that gave way for want of memory, so that their tokens were computed twice.

    `more` bytes of keys and values would have held at once all that waited; None where that was not told.
    """

    gave_way: int
    more: float | None


@dataclass(slots=True)
class MemoryNeed:
    """What one model was short of: the most that a sequence held on the average, and the most that waited at once."""

    gave_way: int = 0
    each: float = 0.0
    waited: int = 0

    @property
    def more(self) -> float | None:
        return self.each * self.waited or None

    def step(self, report: EngineFigures) -> None:
        live, running = report.others.get("live_bytes", 0.0), report.others.get("running", 0.0)
        if running:
            self.each = max(self.each, live / running)
        if report.preemptions > self.gave_way:
            self.gave_way = report.preemptions
            self.waited = max(self.waited, report.waiting, 1)
