"""How long samples wait for their tokens: counts of waits by their length, and the percentiles of many.

A sample waits for its first token from when its request came, and for each further one from the step that gave the one
before. A sample that is drawn in pieces, each a request of its own, waits as one that is not: its first piece has the
first token, and what lies between two pieces is part of a wait. A step that gives several tokens (a draft that was
right, tokens that had no alternative) ends as many waits, each of an equal part of the time; what comes with the first
token ends none. A sample that was preempted goes on waiting. Nobody waits for a sample that runs ahead, so it counts
from when it is needed: for its first token, if it has none by then, and else for the next one.

Lengths are counted in buckets, sixteen to an octave: a percentile is within 2.2% of a wait that was measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

# The percentiles that are told.
PERCENTILES = (50, 95, 99)
_OCTAVE = 16
_LEAST = 1e-7


def bucket_of(seconds: float) -> int:
    """The bucket of a wait."""
    return math.floor(math.log2(max(seconds, _LEAST)) * _OCTAVE)


def percentiles(counts: Mapping[int, int]) -> tuple[float, ...]:
    """The `PERCENTILES` in seconds of waits counted by bucket, by nearest rank; empty where there are none."""
    total = sum(counts.values())
    found: list[float] = []
    below, order = 0, sorted(counts)
    at = -1
    for share in PERCENTILES if total else ():
        while below < share / 100 * total:
            at += 1
            below += counts[order[at]]
        found.append(2 ** ((order[at] + 0.5) / _OCTAVE))
    return tuple(found)


@dataclass(slots=True)
class Waits:
    """Waits by bucket: `first` for the first tokens of samples, `between` for the others."""

    first: Counter[int] = field(default_factory=Counter)
    between: Counter[int] = field(default_factory=Counter)
    # The latest wait and its bucket: the samples of a batch mostly wait alike.
    _latest: tuple[float, int] = (-1.0, 0)

    def note(self, seconds: float, tokens: int, *, first: bool) -> None:
        """A sample that waited for `seconds` got so many tokens; `first`: it had none."""
        wait = seconds if first else seconds / tokens
        if wait != self._latest[0]:
            self._latest = wait, bucket_of(wait)
        if first:
            self.first[self._latest[1]] += 1
        else:
            self.between[self._latest[1]] += tokens

    def add(self, first: Mapping[int, int], between: Mapping[int, int]) -> None:
        # A step has one or two, for which `Counter.update` takes longer than all else that a step is counted by.
        for bucket, count in first.items():
            self.first[bucket] += count
        for bucket, count in between.items():
            self.between[bucket] += count
