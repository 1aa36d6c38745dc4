"""How many tokens to draft, and when none: what drafts bring against what they cost, both measured.

A round that checks K tokens brings 1 + α + … + α^K tokens on average, where each is right with probability α
(Leviathan, Kalman and Matias, 2023). It pays where that many tokens take longer without drafts. Drafts that do not pay
are tried again now and then, out of a hundredth of the time that has passed since, so what they lose is bounded.

The first draft of a sample takes longer: the drafter reads all that stands there. It is made where the tokens that are
still to come will save that much.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from statistics import mean, median_low
from typing import Any

import numpy as np

from qpdsl.executor.engine.memory.sequence import Sequence
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.request import SamplingParams

# What is thought of drafts that nobody has checked yet, and for how many checks that thought counts.
_EXPECTED, _WEIGHT = 0.6, 4.0
# By how much older checks count less: of all samples alike, and of one.
_FORGETTING, _OWN_FORGETTING = 0.99, 0.9
# Drafts must promise so many times as many tokens a second.
_GAIN = 1.03
# The share of the time that may be lost on drafts that are only tried, and how many tokens each try checks.
_TRIED, _TRIAL = 0.01, 2
# Saved time is counted up to so many steps' worth. In advance as many steps may be lost, and as many whole drafts.
_CREDIT, _DEBT = 4.0, 3.0
# What pays is calculated anew every so many steps.
_EVERY = 16
# Drafts that pay are charged for as so many times what is usual, at most.
_USUALLY = 3.0
# No draft is thought to be right more often, nor to cost fewer seconds.
_MOST, _MIN_COST = 0.99, 1e-5
# More likely than any token.
_NEVER = 2.0
# A sample of which the drafter has not read so many tokens starts anew with it.
_UNREAD = 16
# Until so many starts were measured, one is made for each sample that may get so many tokens more.
_TRUSTED, _WORTH = 3, 24


@dataclass(slots=True)
class _Checked:
    """Of so many tokens that were checked, so many were right; older ones count less."""

    right: float = 0.0
    checked: float = 0.0

    def add(self, right: int, checked: int, forgetting: float) -> None:
        kept = forgetting**checked
        self.right = self.right * kept + right
        self.checked = self.checked * kept + checked

    def share(self, expected: float) -> float:
        return (self.right + expected * _WEIGHT) / (self.checked + _WEIGHT)


@dataclass(eq=False, slots=True)
class DraftRecord:
    """What is known of the drafts of requests that are expected to be right alike often.

    `credit`: seconds that drafts have saved, less those they have cost. `costs`: seconds that a level of the latest
    drafts took, of which the median counts, starts aside. `starts`: seconds for a token that was read at a start.
    `read`: up to which token of each sample the drafter has read, its own draft included. `written`: how many tokens
    the latest samples got that were not cut off. `least`: how likely a drafted token must be to pay, as it was
    calculated `age` steps ago for so large a `batch`; negative where it is to be calculated; then `gain` times as many
    tokens come in a second. `tries`: whether the present drafts are made to see whether they would pay.
    """

    drafting: Drafting
    all: _Checked = field(default_factory=_Checked)
    own: dict[Sequence, _Checked] = field(default_factory=dict)
    credit: float = 0.0
    costs: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    starts: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    read: dict[Sequence, int] = field(default_factory=dict)
    written: deque[int] = field(default_factory=lambda: deque(maxlen=32))
    least: float = -1.0
    age: int = 0
    batch: int = 0
    gain: float = 1.0
    tries: bool = False

    @property
    def level_seconds(self) -> float:
        return median_low(self.costs) if self.costs else 0.0

    def unread(self, sample: Sequence) -> int:
        """How many of its tokens the drafter has not read, where they are so many that it starts anew; else 0."""
        unread = len(sample.tokens) - self.read.get(sample, 0)
        return unread if unread > _UNREAD else 0

    def to_come(self, sample: Sequence) -> float:
        """How many tokens the sample is expected to get; as many as it may where none has ended yet."""
        most = sample.generation.max_tokens - sample.drawn
        # One that has got more than others goes on for some time.
        return min(most, max(mean(self.written) - sample.drawn, sample.drawn / 2)) if self.written else most

    def share(self, sample: Sequence) -> float:
        """The expected share of right tokens."""
        expected = self.all.share(_EXPECTED)
        own = self.own.get(sample)
        return expected if own is None else own.share(expected)


class Pace:
    """Says how many tokens to draft for each sample of a step, and learns from what came of it."""

    def __init__(self) -> None:
        self.times = StepTimes()
        self._stages: dict[tuple[Drafting, SamplingParams, bool], DraftRecord] = {}
        self._of: dict[Sequence, DraftRecord] = {}

    def stage(self, sample: Sequence) -> DraftRecord:
        """That of a sample which wants drafts."""
        stage = self._of.get(sample)
        if stage is None:
            request = sample.generation
            assert request.draft is not None
            key = request.draft, request.sampling, request.mask is not None
            stage = self._of[sample] = self._stages.setdefault(key, DraftRecord(request.draft))
        return stage

    def may_draft(self, stage: DraftRecord, batch: int) -> bool:
        """Whether it may pay to draft now, in a step of `batch` samples; a quick look before `lengths`."""
        plain = self.times.seconds(batch)
        whole = plain + stage.drafting.length * stage.level_seconds
        if not self.times.knows(batch) or stage.credit < -_DEBT * whole:
            return False
        stage.age += 1
        if stage.age >= _EVERY or stage.batch != batch:
            stage.age, stage.batch, stage.least = 0, batch, -1.0
        return stage.least <= 1 or stage.credit >= self._trial_cost(stage, batch)

    def lengths(self, stage: DraftRecord, samples: Several[Sequence], rooms: Several[int], batch: int) -> list[int]:
        """How many tokens after each other to draft for each of a stage's samples, with room for so many.

        They are in a step of `batch` samples.
        """
        if stage.least < 0:
            stage.least = self._least(stage, samples, rooms, batch)
        stage.tries = stage.least > 1
        if not stage.tries:
            bound = math.log(stage.least)
            shares = (min(stage.share(sample), _MOST) for sample in samples)
            lengths = (int(bound / math.log(share) + 1e-6) for share in shares)
            most = [min(length, room) for length, room in zip(lengths, rooms, strict=True)]
            ready = self._ready(stage, samples, batch)
            return [length if own else 0 for length, own in zip(most, ready, strict=True)]
        if stage.credit < self._trial_cost(stage, batch):
            return [0] * len(samples)
        # Of those that the drafter has read, the one that is most often right.
        chosen = max(range(len(samples)), key=lambda at: (not stage.unread(samples[at]), stage.share(samples[at])))
        if stage.credit < self._trial_cost(stage, batch) + self._start_seconds(stage, samples[chosen]):
            return [0] * len(samples)
        return [min(_TRIAL, room) if index == chosen else 0 for index, room in enumerate(rooms)]

    def drafted(self, stage: DraftRecord, samples: Several[Sequence], lengths: Several[int], seconds: float) -> None:
        """Drafts of so many tokens after each other, 0 for none, took so long to make."""
        drafting = [sample for sample, length in zip(samples, lengths, strict=True) if length]
        levels, unread = max(1, *lengths), sum(map(stage.unread, drafting))
        if unread:
            stage.starts.append(seconds / unread)
        else:
            stage.costs.append(seconds / levels)
        for sample, length in zip(samples, lengths, strict=True):
            if length:
                stage.read[sample] = len(sample.tokens) + length
        # Where drafts pay, what takes longer once pays as well.
        usual = _USUALLY * levels * stage.level_seconds
        stage.credit -= seconds if stage.tries else min(seconds, usual)

    def checked(self, sample: Sequence, right: int, checked: int) -> None:
        """Of the tokens drafted for a sample, so many were checked one after the other, and so many were right."""
        stage = self._of.get(sample)
        if stage is not None and checked:
            stage.all.add(right, checked, _FORGETTING)
            stage.own.setdefault(sample, _Checked()).add(right, checked, _OWN_FORGETTING)

    def ran(self, samples: Several[Sequence], tokens: int, rows: int, seconds: float) -> None:
        """A decode step of so many rows gave its samples so many tokens in so many seconds."""
        batch = len(samples)
        self.times.measured(rows, seconds)
        stages = {id(stage): stage for sample in samples if (stage := self._of.get(sample)) is not None}
        if not stages:
            return
        plain = self.times.seconds(batch)
        # Of the seconds that were measured the quickest count: the others are of other work on the machine.
        saved = _TRIED * plain if rows == batch else plain * tokens / batch - self.times.seconds(rows)
        for stage in stages.values():
            stage.credit = min(stage.credit + saved / len(stages), _CREDIT * plain)

    def forget(self, sample: Sequence) -> None:
        """The sample will not come back."""
        stage = self._of.pop(sample, None)
        if stage is not None:
            stage.own.pop(sample, None)
            stage.read.pop(sample, None)
            if sample.drawn < sample.generation.max_tokens:
                stage.written.append(sample.drawn)

    def _least(self, stage: DraftRecord, samples: Several[Sequence], rooms: Several[int], batch: int) -> float:
        """How likely a drafted token must be to be reached and right, for tokens to come fastest; above 1 for none.

        A token at depth d of a draft whose tokens are right with probability α is reached and right with α^d. The most
        likely tokens are taken first, as many as pay.
        """
        drafting = stage.drafting
        deepest = min(drafting.length, max(rooms))
        if deepest < 1:
            return _NEVER
        share = np.array([min(stage.share(sample), _MOST) for sample in samples])
        depths = np.arange(1, deepest + 1)
        likely = (share[:, None] ** depths).ravel()
        order = np.argsort(-likely, kind="stable")
        depth = depths[order % deepest]
        # Where drafts are trees, a level has more tokens.
        rows = np.cumsum(np.minimum(float(drafting.branches) ** depth, drafting.nodes))
        tokens = batch + np.cumsum(likely[order])
        cost = np.maximum.accumulate(depth) * stage.level_seconds
        seconds = self.times.of(batch + rows) + cost
        rates = tokens / seconds
        best = int(rates.argmax())
        stage.gain = float(rates[best] * self.times.seconds(batch) / batch)
        return float(likely[order[best]]) if stage.gain > _GAIN else _NEVER

    def _ready(self, stage: DraftRecord, samples: Several[Sequence], batch: int) -> list[bool]:
        """Which samples the drafter has read, or is to read now: as many as the tokens to come pay for.

        The first starts, which have code to load, are made one at a time.
        """
        ready = [not stage.unread(sample) for sample in samples]
        # The share of a sample's time that drafts are expected to save.
        saved = (1 - 1 / max(stage.gain, 1.0)) * self.times.seconds(batch) / batch
        for number, sample in enumerate(samples):
            if ready[number]:
                continue
            if len(stage.starts) < _TRUSTED:
                ready[number] = stage.to_come(sample) >= _WORTH
                if ready[number]:
                    break
            else:
                ready[number] = stage.to_come(sample) * saved > self._start_seconds(stage, sample)
        return ready

    def _start_seconds(self, stage: DraftRecord, sample: Sequence) -> float:
        return stage.unread(sample) * median_low(stage.starts) if stage.starts else 0.0

    def _trial_cost(self, stage: DraftRecord, batch: int) -> float:
        """The seconds that it takes to try a short draft for one sample."""
        length = min(_TRIAL, stage.drafting.length)
        rows = sum(stage.drafting.branches**level for level in range(1, length + 1))
        plain, longer = self.times.of(np.array([batch, batch + rows]))
        return max(float(longer - plain) + length * stage.level_seconds, _MIN_COST)


# Steps of about as many rows, the latest ones, of which the quickest counts: other work on the machine only adds time.
_KEPT, _ENOUGH = 5, 3
# After so many steps a measurement is old.
_OLD = 64

_Floats = np.ndarray[Any, np.dtype[np.float64]]


class StepTimes:
    """Seconds of a step, between those that were measured in proportion; none is longer than one with more rows."""

    def __init__(self) -> None:
        self._measured: dict[int, deque[float]] = {}
        self._quickest: dict[int, float] = {}
        self._at: dict[int, int] = {}
        self._steps = 0
        self._known: tuple[_Floats, _Floats] | None = None

    def measured(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        rows = _about(rows)
        self._steps += 1
        self._at[rows] = self._steps
        kept = self._measured.setdefault(rows, deque(maxlen=_KEPT))
        kept.append(seconds)
        quickest = min(kept)
        if quickest != self._quickest.get(rows):
            self._quickest[rows] = quickest
            self._known = None

    def knows(self, rows: int) -> bool:
        """Whether steps of about so many rows were measured, often enough and lately."""
        rows = _about(rows)
        return len(self._measured.get(rows, ())) >= _ENOUGH and self._steps - self._at[rows] < _OLD

    def seconds(self, rows: int) -> float:
        """Of a step of so many rows; 0 where none was measured."""
        return float(self.of(np.array([rows]))[0])

    def of(self, rows: np.ndarray[Any, Any]) -> _Floats:
        """The same for several steps, float64 [N].

        Beyond the largest that was measured it grows with the square root of the rows: it is tried, and then known.
        """
        if not self._measured:
            return np.zeros(len(rows))
        if self._known is None:
            known = sorted(self._quickest)
            seconds = np.array([self._quickest[count] for count in known])
            self._known = np.array(known, float), np.minimum.accumulate(seconds[::-1])[::-1]
        known_rows, known_seconds = self._known
        beyond: _Floats = np.sqrt(np.maximum(rows / known_rows[-1], 1.0))
        between: _Floats = np.interp(rows, known_rows, known_seconds)
        return between * beyond


def _about(rows: int) -> int:
    """Up to 16 rows the number itself, from there on its four highest binary digits, so that few kinds are kept."""
    if rows <= 16:
        return rows
    low = max(0, rows.bit_length() - 4)
    return rows >> low << low
