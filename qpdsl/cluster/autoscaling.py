"""How many replicas there should be: more while rows wait for long, fewer once some have nothing to do.

A replica costs the time that it takes to load. One more is worth that where the rows that wait would keep those that
are there busy for longer. One that has had nothing to do for a while is given back. Everything is told by numbers and
times, so a simulation can ask too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """A cluster at one time: replicas that run or load, those that have no row, rows that wait, and how fast rows end.

    `rate` is in rows a second of one replica, None until a row has ended. `start_seconds` is how long a replica took to
    load, None until one has.
    """

    running: int
    loading: int
    idle: int
    waiting: int
    rate: float | None
    start_seconds: float | None


@dataclass(slots=True)
class Autoscaler:
    """Never fewer than `least` nor more than `most`. Times are in seconds on one clock."""

    least: int
    most: int
    idle_seconds: float = 5.0
    _idle_since: float | None = None

    def wanted(self, load: Load, now: float) -> int:
        """How many replicas there should be now, those that load among them: one more or one fewer than there are."""
        there = load.running + load.loading
        if there < self.least:
            return self.least
        if load.idle == 0 or load.waiting:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        if load.waiting and not load.idle and not load.loading and there < self.most:
            return there + self._is_worth_it(load)
        if self._idle_since is not None and now - self._idle_since >= self.idle_seconds and there > self.least:
            self._idle_since = now
            return there - 1
        return there

    def _is_worth_it(self, load: Load) -> bool:
        """Whether the rows that wait take longer, by what is known so far, than one more replica takes to load."""
        if load.rate is None or load.start_seconds is None or not load.running:
            return load.running > 0 and load.start_seconds is not None
        return load.waiting / (load.rate * load.running) > load.start_seconds
