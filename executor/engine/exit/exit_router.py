"""Which draws try their early exit, how, and which leave it out: learned from run to run, and fixed during each.

A draw that leaves the exit out saves what the exit reads, and its token is the full model's. So the choice changes
tokens, and must depend on nothing but the row. A router decides by what it knew when its run began and by the sample's
own past; what a run shows is learned when it has ended, and serves the next one (batched bandits: Perchet, Rigollet,
Chassang and Snowberg, 2016). A draw that leaves the exit out costs 1 by definition, so that the losses to learn are
those of trying it, with and without reranking, linear in what was seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from qpdsl.executor.requests.routing import EXIT_ARMS, ExitArm, ExitRouting
from qpdsl.executor.requests.shadow import chance
from qpdsl.executor.routing.linear import Ridge
from qpdsl.executor.routing.policy import Floats, numbers

FEATURES = ("draw", "first", "margin", "stood", "allowed", "position", "cached")
_UNIT = len(FEATURES) ** -0.5
# From so many tokens on, where a draw stands, or how much is cached before it, tells nothing more.
_LONG, _LONG_TEXT = 1024, 8192
# What the first belief counts, in draws for each direction of what is seen; how much is hoped of what is not known; and
# which share of the draws tries an exit that seems not to pay, so that a change shows.
_BELIEF, _HOPE, _TRIES = 4.0, 0.05, 0.02
# The first belief about quality counts as so many shadowed draws. So much of earlier evidence counts in the next run.
_BELIEVED, _KEPT = 50.0, 0.5
# A cost is that of the machine's own figures once it was paid so often.
_OFTEN = 16
_NOISE, _TRYING, _ROLES = 2, 3, 4


class Seen(NamedTuple):
    """What is seen of a draw: its noise key and position, and the sample's past.

    `last`: the margin of the last draw that tried an exit, and whether its token stood; None where there was none.
    `allowed`: the share of all ids that the mask allowed at the draw before, 1 without a mask. `cached`: the tokens
    before it, whose keys and values a layer reads.
    """

    key: int
    position: int
    last: tuple[float, bool] | None
    allowed: float
    cached: int

    def context(self) -> Floats:
        """By `FEATURES`, float64 [F], ‖x‖ ≤ 1."""
        margin, stood = self.last or (0.0, False)
        place, cached = min(self.position / _LONG, 1.0), min(self.cached / _LONG_TEXT, 1.0)
        shown = (1.0, self.last is None, margin, stood, self.allowed, place, cached)
        context: Floats = np.array(shown, dtype=np.float64) * _UNIT
        return context


class ExpectedExits(NamedTuple):
    """What is expected of an exit before it was used: shares of draws that leave, and whose token changes.

    `leave` is what a draw costs that leaves, `refine` what another costs on top of it, both as shares of a full draw.
    """

    exits: float
    loss: float
    leave: float
    refine: float


@dataclass(slots=True)
class Paid:
    """Seconds, and how often they were paid. The first time is left out, in which code is compiled."""

    seconds: float = 0.0
    times: int = 0
    begun: bool = False

    def add(self, seconds: float, times: int) -> None:
        if self.begun:
            self.seconds += seconds
            self.times += times
        self.begun = True

    @property
    def mean(self) -> float:
        return self.seconds / self.times


@dataclass(slots=True)
class DrawCosts:
    """What the parts of draws with a deferred exit took: first layers, exit, other layers with those put off, head.

    `reranked` is the head of draws that choose among a few ids.
    """

    first: Paid = field(default_factory=Paid)
    exit: Paid = field(default_factory=Paid)
    rest: Paid = field(default_factory=Paid)
    head: Paid = field(default_factory=Paid)
    reranked: Paid = field(default_factory=Paid)

    def shares(self, arm: ExitArm) -> tuple[float, float] | None:
        """What a draw takes that leaves, and what another takes on top of it, as shares of one without an exit.

        None while it is not known.
        """
        last = self.reranked if arm == "rerank" else self.head
        parts = (self.first, self.exit, self.rest, self.head, last)
        if min(part.times for part in parts) < _OFTEN:
            return None
        first, leaving, rest, head, own = (part.mean for part in parts)
        full = first + rest + head
        return (first + leaving) / full, (rest + own) / full


class ExitRouter:
    """Decides for all draws of one model that have the same exit. What it decides by never changes, but by `restore`.

    `arms` are those that the exit has, of `EXIT_ARMS`: it `reranks`, or not. `draws` counts those of each arm, `spent`
    are the seconds that choosing took.
    """

    def __init__(self, routing: ExitRouting, expected: ExpectedExits, *, reranks: bool = False) -> None:
        self.routing = routing
        self.arms = tuple(arm for arm in EXIT_ARMS if reranks or arm != "rerank")
        self.draws: dict[ExitArm, int] = dict.fromkeys(self.arms, 0)
        self.spent = 0.0
        # Those whose losses are learned.
        self._tried = self.arms[:-1]
        self._expected = expected
        self._known = self._ridge()
        # By arm, shadowed draws of earlier runs, as far as they count, and those of them that differed; then of this.
        self._shadows = dict.fromkeys(self._tried, (0.0, 0.0))
        self._seen_shadows = dict.fromkeys(self._tried, (0, 0))
        self._log: list[tuple[Seen, ExitArm, bool]] = []
        self._digest = self._digest_of(self.state())

    @property
    def digest(self) -> str:
        """Names what it decides by: with the same, the same draws try their exit."""
        return self._digest

    def arm(self, seen: Seen) -> ExitArm:
        """What a draw does."""
        if self.routing.fixed is not None:
            return self.routing.fixed
        means, spreads = self._known.scores(seen.context())
        losses = means - _HOPE * spreads
        if self.routing.policy == "thompson":
            for number, mean in enumerate(means.tolist()):
                drawn = min(max(chance(seen.key, seen.position, _NOISE + _ROLES * number), 1e-12), 1 - 1e-12)
                losses[number] = mean + _HOPE * float(spreads[number]) * NormalDist().inv_cdf(drawn)
        best = int(losses.argmin())
        if losses[best] < self.routing.latency:
            return self._tried[best]
        trying = chance(seen.key, seen.position, _TRYING) / _TRIES
        return self._tried[int(trying * len(self._tried))] if trying < 1 else "full"

    def note(self, seen: Seen, arm: ExitArm, left: bool, same: bool | None = None) -> None:
        """Notes a draw, and whether it left. `same`: see `ExitOutcome`."""
        self.draws[arm] += 1
        if same is not None:
            shadowed, differed = self._seen_shadows[arm]
            self._seen_shadows[arm] = shadowed + 1, differed + (not same)
        if arm != "full" and self.routing.fixed is None:
            self._log.append((seen, arm, left))

    def learned(self, costs: DrawCosts) -> dict[str, Any]:
        """The state with what its run showed, and what draws cost in it. Their order makes no difference."""
        expected = self._expected
        believed = expected.loss / expected.exits if expected.exits else 0.0
        shadows, wrong, paid = {}, {}, {}
        for arm in self._tried:
            (earlier, before), (count, differed) = self._shadows[arm], self._seen_shadows[arm]
            shadows[arm] = earlier + count, before + differed
            wrong[arm] = (before + differed + _BELIEVED * believed) / (earlier + count + _BELIEVED)
            paid[arm] = costs.shares(arm) or (expected.leave, expected.refine)
        after = self._ridge()
        after.restore(self._known.state())
        for seen, arm, left in sorted(self._log, key=lambda noted: noted[0][:2]):
            leave, refine = paid[arm]
            # What was chosen among a few ids can be wrong too.
            risk = wrong[arm] if left or arm == "rerank" else 0.0
            after.learn(seen.context(), self._tried.index(arm), self._loss(leave if left else leave + refine, risk))
        return self._state(after, shadows)

    def state(self) -> dict[str, Any]:
        """What it decides by, as JSON holds it."""
        return self._state(self._known, self._shadows)

    def restore(self, state: object) -> None:
        """Decides by what an earlier run learned, as far as that counts. ValueError where it is not such a state."""
        if self._log:
            raise RuntimeError("a router changes between runs alone")
        own = {"arms": list(self.arms), "latency": self.routing.latency}
        if not isinstance(state, dict) or {name: state.get(name) for name in own} != own:
            raise ValueError("the state is that of a router with other arms, or with another weight of latency")
        shadows = numbers(state, "shadows", len(self._tried), 2)
        if (shadows < 0).any():
            raise ValueError("the state has no counts of shadowed draws")
        self._known.restore(state.get("losses", {}), _KEPT)
        self._shadows = {arm: (_KEPT * a, _KEPT * b) for arm, (a, b) in zip(self._tried, shadows.tolist(), strict=True)}
        self._digest = self._digest_of(state)

    def _ridge(self) -> Ridge:
        expected = self._expected
        cost = expected.leave + (1 - expected.exits) * expected.refine
        prior = np.zeros((len(self._tried), len(FEATURES)))
        prior[:, 0] = self._loss(cost, expected.loss) / _UNIT
        return Ridge(len(self._tried), len(FEATURES), alpha=_BELIEF, prior=prior)

    def _loss(self, cost: float, wrong: float) -> float:
        return self.routing.latency * cost + (1 - self.routing.latency) * wrong

    def _state(self, known: Ridge, shadows: Mapping[ExitArm, tuple[float, float]]) -> dict[str, Any]:
        own: dict[str, Any] = {"arms": list(self.arms), "latency": self.routing.latency, "losses": known.state()}
        return own | {"shadows": [list(shadows[arm]) for arm in self._tried]}

    def _digest_of(self, state: object) -> str:
        text = json.dumps([str(self.routing), self._expected, state], sort_keys=True)
        return blake2b(text.encode(), digest_size=6).hexdigest()
