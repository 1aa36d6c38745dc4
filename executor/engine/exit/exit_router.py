"""Which draws try their early exit, and which leave it out: learned from run to run, and fixed during each.

A draw that leaves the exit out saves what the exit reads, and its token is the full model's. So the choice changes
tokens, and must depend on nothing but the row. A router decides by what it knew when its run began and by the sample's
own past; what a run shows is learned when it has ended, and serves the next one (batched bandits: Perchet, Rigollet,
Chassang and Snowberg, 2016). A draw that leaves the exit out costs 1 by definition, so that there is one loss to learn:
that of trying it, linear in what was seen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from qpdsl.executor.requests.routing import EXIT_ARMS, ExitRouting
from qpdsl.executor.requests.shadow import chance
from qpdsl.executor.routing.linear import Ridge
from qpdsl.executor.routing.policy import Floats

FEATURES = ("draw", "first", "margin", "stood", "allowed", "position")
_UNIT = len(FEATURES) ** -0.5
# From so many tokens on, where a draw stands tells nothing more.
_LONG = 1024
# What the first belief counts, in draws for each direction of what is seen; how much is hoped of what is not known; and
# which share of the draws tries an exit that seems not to pay, so that a change shows.
_BELIEF, _HOPE, _TRIES = 4.0, 0.05, 0.02
# The first belief about quality counts as so many shadowed draws. So much of earlier evidence counts in the next run.
_BELIEVED, _KEPT = 50.0, 0.5
# A cost is that of the machine's own figures once it was paid so often.
_OFTEN = 16
_NOISE, _TRYING = 2, 3


class Seen(NamedTuple):
    """What is seen of a draw: its noise key and position, and the sample's past.

    `last`: the margin of the last draw that tried an exit, and whether its token stood; None where there was none.
    `allowed`: the share of all ids that the mask allowed at the draw before, 1 without a mask.
    """

    key: int
    position: int
    last: tuple[float, bool] | None
    allowed: float

    def context(self) -> Floats:
        """By `FEATURES`, float64 [F], ‖x‖ ≤ 1."""
        margin, stood = self.last or (0.0, False)
        numbers = (1.0, self.last is None, margin, stood, self.allowed, min(self.position / _LONG, 1.0))
        context: Floats = np.array(numbers, dtype=np.float64) * _UNIT
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
    """What the parts of draws with a deferred exit took: first layers, exit, other layers with those put off, head."""

    first: Paid = field(default_factory=Paid)
    exit: Paid = field(default_factory=Paid)
    rest: Paid = field(default_factory=Paid)
    head: Paid = field(default_factory=Paid)

    def shares(self) -> tuple[float, float] | None:
        """What a draw takes that leaves, and what another takes on top of it, as shares of one without an exit.

        None while it is not known.
        """
        parts = (self.first, self.exit, self.rest, self.head)
        if min(part.times for part in parts) < _OFTEN:
            return None
        first, leaving, rest, head = (part.mean for part in parts)
        full = first + rest + head
        return (first + leaving) / full, (rest + head) / full


class ExitRouter:
    """Decides for all draws of one model that have the same exit. What it decides by never changes, but by `restore`.

    `draws` counts those of each arm.
    """

    def __init__(self, routing: ExitRouting, expected: ExpectedExits) -> None:
        self.routing = routing
        self.draws: dict[str, int] = dict.fromkeys(EXIT_ARMS, 0)
        self._expected = expected
        self._known = self._ridge()
        # Shadowed draws of earlier runs, as far as they count, and those of them that differed.
        self._shadowed, self._differed = 0.0, 0.0
        self._seen_shadowed, self._seen_differed = 0, 0
        self._log: list[tuple[Seen, bool]] = []
        self._digest = self._digest_of(self.state())

    @property
    def digest(self) -> str:
        """Names what it decides by: with the same, the same draws try their exit."""
        return self._digest

    def tries(self, seen: Seen) -> bool:
        """Whether a draw tries its exit."""
        if self.routing.fixed is not None:
            return self.routing.fixed == "exit"
        means, spreads = self._known.scores(seen.context())
        loss, spread = float(means[0]), _HOPE * float(spreads[0])
        if self.routing.policy == "thompson":
            number = chance(seen.key, seen.position, _NOISE)
            loss += spread * NormalDist().inv_cdf(min(max(number, 1e-12), 1 - 1e-12))
        else:
            loss -= spread
        return loss < self.routing.latency or chance(seen.key, seen.position, _TRYING) < _TRIES

    def note(self, seen: Seen, left: bool | None, same: bool | None = None) -> None:
        """Notes a draw, and whether it left; None where it tried no exit. `same`: see `ExitOutcome`."""
        self.draws["full" if left is None else "exit"] += 1
        self._seen_shadowed += same is not None
        self._seen_differed += same is False
        if left is not None and self.routing.fixed is None:
            self._log.append((seen, left))

    def learned(self, costs: DrawCosts) -> dict[str, Any]:
        """The state with what its run showed, and what draws cost in it. Their order makes no difference."""
        shadows, changed = self._shadowed + self._seen_shadowed, self._differed + self._seen_differed
        wrong = self._expected.loss / self._expected.exits if self._expected.exits else 0.0
        wrong = (changed + _BELIEVED * wrong) / (shadows + _BELIEVED)
        leave, refine = costs.shares() or (self._expected.leave, self._expected.refine)
        after = self._ridge()
        after.restore(self._known.state())
        for seen, left in sorted(self._log, key=lambda noted: noted[0][:2]):
            after.learn(seen.context(), 0, self._loss(leave if left else leave + refine, wrong if left else 0.0))
        return self._state(after, shadows, changed)

    def state(self) -> dict[str, Any]:
        """What it decides by, as JSON holds it."""
        return self._state(self._known, self._shadowed, self._differed)

    def restore(self, state: object) -> None:
        """Decides by what an earlier run learned, as far as that counts. ValueError where it is not such a state."""
        if self._log:
            raise RuntimeError("a router changes between runs alone")
        own = {"arms": list(EXIT_ARMS), "latency": self.routing.latency}
        if not isinstance(state, dict) or {name: state.get(name) for name in own} != own:
            raise ValueError("the state is that of a router with other arms, or with another weight of latency")
        shadows = state.get("shadowed"), state.get("differed")
        if not all(isinstance(count, int | float) and 0 <= count < float("inf") for count in shadows):
            raise ValueError("the state has no counts of shadowed draws")
        self._known.restore(state.get("exit", {}), _KEPT)
        self._shadowed, self._differed = (_KEPT * float(count or 0) for count in shadows)
        self._digest = self._digest_of(state)

    def _ridge(self) -> Ridge:
        expected = self._expected
        cost = expected.leave + (1 - expected.exits) * expected.refine
        prior = np.zeros((1, len(FEATURES)))
        prior[0, 0] = self._loss(cost, expected.loss) / _UNIT
        return Ridge(1, len(FEATURES), alpha=_BELIEF, prior=prior)

    def _loss(self, cost: float, wrong: float) -> float:
        return self.routing.latency * cost + (1 - self.routing.latency) * wrong

    def _state(self, known: Ridge, shadowed: float, differed: float) -> dict[str, Any]:
        own: dict[str, Any] = {"arms": list(EXIT_ARMS), "latency": self.routing.latency, "exit": known.state()}
        return own | {"shadowed": shadowed, "differed": differed}

    def _digest_of(self, state: object) -> str:
        text = json.dumps([str(self.routing), self._expected, state], sort_keys=True)
        return blake2b(text.encode(), digest_size=6).hexdigest()
