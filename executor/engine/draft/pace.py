"""How many tokens to draft, and when none: what drafts bring against what they cost, both measured.

A round that checks K tokens brings 1 + α + … + α^K tokens on average, where each is right with probability α
(Leviathan, Kalman and Matias, 2023). It pays where that many tokens take longer without drafts. Drafts that do not pay
are tried again now and then, out of a hundredth of the time that has passed since, so what they lose is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from statistics import median_low

import numpy as np

from qpdsl.executor.engine.draft.step_times import StepTimes
from qpdsl.executor.engine.memory.sequence import Sequence
from qpdsl.executor.requests.drafting import Drafting
from qpdsl.executor.requests.request import SamplingParams

# What is thought of drafts that nobody has checked yet, and for how many checks that thought counts.
_EXPECTED, _WEIGHT = 0.6, 4.0
# By how much older checks count less: of all samples alike, and of one.
_FORGETTING, _OWN_FORGETTING = 0.99, 0.9
# Drafts must promise so many times as many tokens a second.
_GAIN = 1.03
# The share of the time that may be lost on drafts that are only tried, and how many tokens each try checks.
_TRIED, _TRIAL = 0.01, 2
# Saved and lost time is counted up to so many steps' worth.
_CREDIT = 4.0
# While drafts do not pay, it is calculated anew every so many steps.
_EVERY = 8


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
class Stage:
    """What is known of the drafts of requests that are expected to be right alike often.

    `credit`: seconds that drafts have saved, less those they have cost. `costs`: seconds a level of late drafts took.
    """

    drafting: Drafting
    all: _Checked = field(default_factory=_Checked)
    own: dict[Sequence, _Checked] = field(default_factory=dict)
    credit: float = 0.0
    costs: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    idle: int = 0

    @property
    def level_seconds(self) -> float:
        return median_low(self.costs) if self.costs else 0.0

    def share(self, sample: Sequence) -> float:
        """The expected share of right tokens."""
        expected = self.all.share(_EXPECTED)
        own = self.own.get(sample)
        return expected if own is None else own.share(expected)


class Pace:
    """Says how many tokens to draft for each sample of a step, and learns from what came of it."""

    def __init__(self) -> None:
        self.times = StepTimes()
        self._stages: dict[tuple[Drafting, SamplingParams, bool], Stage] = {}
        self._of: dict[Sequence, Stage] = {}

    def stage(self, sample: Sequence) -> Stage:
        """That of a sample which wants drafts."""
        stage = self._of.get(sample)
        if stage is None:
            request = sample.generation
            assert request.draft is not None
            key = request.draft, request.sampling, request.mask is not None
            stage = self._of[sample] = self._stages.setdefault(key, Stage(request.draft))
        return stage

    def lengths(self, stage: Stage, samples: Several[Sequence], rooms: Several[int], batch: int) -> list[int]:
        """How many tokens after each other to draft for each of a stage's samples, with room for so many.

        They are in a step of `batch` samples.
        """
        plain = self.times.seconds(batch)
        if not self.times.knows(batch) or stage.credit < -_CREDIT * plain:
            return [0] * len(samples)
        if stage.idle:
            stage.idle -= 1
        else:
            lengths = self._best(stage, samples, rooms, batch)
            if any(lengths):
                return lengths
            stage.idle = _EVERY
        return self._trial(stage, samples, rooms, batch)

    def drafted(self, stage: Stage, levels: int, seconds: float) -> None:
        """Drafts of so many tokens after each other took so long to make."""
        stage.costs.append(seconds / max(1, levels))
        stage.credit -= seconds

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
        saved = _TRIED * seconds if rows == batch else plain * tokens / batch - seconds
        for stage in stages.values():
            stage.credit = min(stage.credit + saved / len(stages), _CREDIT * plain)

    def forget(self, sample: Sequence) -> None:
        """The sample will not come back."""
        stage = self._of.pop(sample, None)
        if stage is not None:
            stage.own.pop(sample, None)

    def _best(
        self, stage: Stage, samples: Several[Sequence], rooms: Several[int], batch: int
    ) -> list[int]:
        """The lengths that promise most tokens a second; zeros where drafts promise no more than there are without.

        A token at depth d of a draft whose tokens are right with probability α is reached and right with α^d. The most
        likely tokens are taken, as many as pay.
        """
        drafting = stage.drafting
        deepest = min(drafting.length, max(rooms))
        if deepest < 1:
            return [0] * len(samples)
        share = np.array([stage.share(sample) for sample in samples])
        depths = np.arange(1, deepest + 1)
        likely = share[:, None] ** depths
        likely[depths > np.array(rooms)[:, None]] = 0.0
        # Where drafts are trees, what makes one level right makes it larger, too.
        widths = np.minimum(float(drafting.branches) ** depths, drafting.nodes)
        order = np.argsort(-likely, axis=None, kind="stable")
        reached = depths[order % deepest]
        rows = batch + np.cumsum(widths[order % deepest])
        tokens = batch + np.cumsum(likely.ravel()[order])
        cost = np.maximum.accumulate(reached) * stage.level_seconds
        seconds = np.array([self.times.seconds(int(count)) for count in rows]) + cost
        rates = tokens / seconds
        best = int(rates.argmax())
        if rates[best] < _GAIN * batch / self.times.seconds(batch):
            return [0] * len(samples)
        counts = np.bincount(order[: best + 1] // deepest, minlength=len(samples))
        return [min(int(count), room) for count, room in zip(counts, rooms, strict=True)]

    def _trial(
        self, stage: Stage, samples: Several[Sequence], rooms: Several[int], batch: int
    ) -> list[int]:
        """A short draft for the sample that is most often right, where there is time to lose."""
        drafting = stage.drafting
        length = min(_TRIAL, drafting.length)
        rows = sum(drafting.branches**level for level in range(1, length + 1))
        cost = self.times.seconds(batch + rows) - self.times.seconds(batch) + length * stage.level_seconds
        if stage.credit <= 0 or stage.credit < cost:
            return [0] * len(samples)
        chosen = max(range(len(samples)), key=lambda index: stage.share(samples[index]))
        return [min(length, rooms[index]) if index == chosen else 0 for index in range(len(samples))]
