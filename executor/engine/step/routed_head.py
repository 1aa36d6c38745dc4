"""The compiled head with a policy that says, once a step, over which ids it is computed (LLM-QP, section 4).

No token depends on it. What a step shows is told by what each arm would read of the head, so a policy learns what
reading costs here beside what does not depend on it: lists of ids, groups of draws, the device.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from qpdsl.executor.engine.step.sampler import NEAR_TIE_GAP, SampledTokens
from qpdsl.executor.engine.step.token_head import HeadDraws
from qpdsl.executor.requests.routing import Arm, Routing
from qpdsl.executor.routing.drift import drifting
from qpdsl.executor.routing.linear import LinUCB, Thompson
from qpdsl.executor.routing.policy import Fixed, Policy
from qpdsl.executor.routing.route_table import RouteTable
from qpdsl.executor.routing.thresholds import Exponential

if TYPE_CHECKING:
    from qpdsl.executor.kernels.llvm.panel_head import PanelHead, Reach
    from qpdsl.executor.requests.request import Bits
    from qpdsl.executor.requests.routing import Arm

FEATURES = ("step", "rows", "union", "dense", "lists")
# A loss of 1 is that of a step which reads what the dense arm reads at so many bytes a second, and takes so many
# seconds whatever it reads.
_NOMINAL, _FIXED = 1e10, 2e-4
# What a step takes at the most, for the policy: what is longer is other work on the machine.
_LONGEST = 4.0
# A group of draws with a list of its own costs about as much as so many panels.
_LISTS = 64
_UNIT = len(FEATURES) ** -0.5
# At first an arm is believed to read ten times as fast, so that none is left out because it seemed slow. What this
# belief counts, in steps for each direction of a context, and how much is hoped of what is not known.
_FASTER, _BELIEF, _HOPE = 10.0, 0.1, 0.01
# So much of what an earlier run learned counts.
_KEPT = 0.5
# Of what a policy is told: a trace keeps as many, so what it shows is what the policy saw.
DIGITS = 6


def context_of(reach: Reach) -> tuple[float, ...]:
    """What a step shows, by `FEATURES`: ‖x‖ ≤ 1, but where the draws' own lists read more than all ids.

    What it costs whatever it reads, and what the draws' own lists, one list for all, and all ids read; all of it as
    shares of the last. And the number of lists.
    """
    unit = _UNIT / reach.dense
    lists = min(len(reach.lengths) * _LISTS, reach.dense)
    shown = len(reach.union), reach.own, reach.shared, reach.dense, lists
    return tuple([round(number * unit, DIGITS) for number in shown])


@dataclass(frozen=True, slots=True)
class RoutedStep:
    """A step with a choice: what it shows the policy, and how much each arm would read."""

    routing: Routing
    context: tuple[float, ...]
    reach: Reach
    panel_bytes: float

    def loss(self, seconds: float) -> float:
        """Of an arm that took so long: its seconds over those of a nominal dense step, times their weight."""
        nominal = self.reach.dense * self.panel_bytes / _NOMINAL + _FIXED
        return round(self.routing.latency * min(seconds / nominal, _LONGEST), DIGITS)


class RouteChoice(NamedTuple):
    """What a policy chose for a step that showed `context`, and what that cost: all that it has of the step."""

    router: str
    arm: Arm
    loss: float
    context: tuple[float, ...]


Computing = Callable[[torch.Tensor, HeadDraws, RoutedStep, int], tuple[SampledTokens, float]]


def policy_of(routing: Routing) -> Policy:
    """A policy that has learned nothing yet. Linear ones begin with the belief that reading costs, and little.

    These stand behind a table, which most steps are looked up in.
    """
    arms, sizes = routing.arms, (len(routing.arms), len(FEATURES))
    if routing.policy == "fixed":
        return Fixed(*sizes)
    if routing.policy == "exponential":
        few: Arm = "rows" if "rows" in arms else "union"
        reached, below = (arms.index(arm) if arm in arms else 0 for arm in ("dense", few))
        return Exponential(*sizes, reached=reached, below=below, seed=routing.seed)
    reads = {"dense": (0, 0, 0, 1, 0), "rows": (0, 1, 0, 0, 0), "union": (0, 0, 1, 0, 0)}
    prior = np.array([reads[arm] for arm in arms]) * (routing.latency / _UNIT / _FASTER)
    if routing.policy == "thompson":
        return RouteTable(drifting(Thompson(*sizes, prior=prior, alpha=_BELIEF, beta=_HOPE, seed=routing.seed)))
    return RouteTable(drifting(LinUCB(*sizes, prior=prior, alpha=_BELIEF, beta=_HOPE)))


@dataclass(slots=True)
class HeadRouter:
    """A policy at work. `steps` counts those of each arm, `seconds` are theirs, `spent` are the policy's own."""

    routing: Routing
    policy: Policy
    steps: Counter[Arm] = field(default_factory=Counter)
    seconds: float = 0.0
    spent: float = 0.0

    @classmethod
    def of(cls, routing: Routing) -> HeadRouter:
        return cls(routing, policy_of(routing))

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON holds it."""
        return {"arms": list(self.routing.arms), "latency": self.routing.latency, "policy": self.policy.state()}

    def restore(self, state: object) -> None:
        """Goes on from what an earlier run learned, as far as that counts. ValueError where it is not such a state."""
        own = {"arms": list(self.routing.arms), "latency": self.routing.latency}
        if not isinstance(state, dict) or {name: state.get(name) for name in own} != own:
            raise ValueError("the state is that of a router with other arms")
        self.policy.restore(state.get("policy", {}), _KEPT)


class RoutedHead:
    """A `TokenHead` that asks a policy where the draws of a step have a `route`, and something to choose.

    `choice`: what was chosen for the last call, None where nobody chose.
    """

    def __init__(self, head: CompiledHead) -> None:
        self._head = head
        self.routers: dict[Routing, HeadRouter] = {}
        self.choice: RouteChoice | None = None
        self.compute: Computing = self.computed
        """Computes a routed step by the arm that was chosen; what measures arms may put itself in its place."""

    def router(self, routing: Routing) -> HeadRouter:
        """The router of all draws with this routing."""
        found = self.routers.get(routing)
        if found is None:
            found = self.routers[routing] = HeadRouter.of(routing)
        return found

    def with_margins(self, hidden: torch.Tensor, draws: HeadDraws) -> tuple[SampledTokens, torch.Tensor]:
        """See `TokenHead`. Nobody routes draws from an exit layer."""
        return self._head.with_margins(hidden, draws)

    def __call__(self, hidden: torch.Tensor, draws: HeadDraws) -> SampledTokens:
        self.choice = None
        reach = None if draws.route is None else self._head.reach(draws)
        if draws.route is None or reach is None:
            return self._head(hidden, draws)
        router = self.router(draws.route)
        policy = router.policy
        started = time.perf_counter()
        step = RoutedStep(router.routing, context_of(reach), reach, self._head.weight_bytes / len(reach.union))
        chosen = policy.choose(step.context)
        begun = time.perf_counter()
        drawn, seconds = self.compute(hidden, draws, step, chosen)
        ended = time.perf_counter()
        loss, arm = step.loss(seconds), router.routing.arms[chosen]
        policy.learn(step.context, chosen, loss)
        router.spent += begun - started + time.perf_counter() - ended
        router.seconds += seconds
        self.choice = RouteChoice(str(router.routing), arm, loss, step.context)
        router.steps[arm] += 1
        return drawn

    def computed(
        self, hidden: torch.Tensor, draws: HeadDraws, step: RoutedStep, arm: int
    ) -> tuple[SampledTokens, float]:
        """What an arm draws, by its number, and the seconds that it takes."""
        begun = time.perf_counter()
        drawn = self._head(hidden, draws, step.routing.arms[arm], step.reach)
        return drawn, time.perf_counter() - begun


class CompiledHead:
    """A `TokenHead` over panels. A draw's bits depend on its own hidden state and mask alone."""

    def __init__(self, head: PanelHead) -> None:
        self._head = head

    def __call__(
        self, hidden: torch.Tensor, draws: HeadDraws, arm: Arm | None = None, reach: Reach | None = None
    ) -> SampledTokens:
        """`arm` and `reach`: see `HeadPlanner.plan`."""
        numbers = (draws.rows, draws.temperature, draws.keys, draws.positions, draws.allowed, draws.sparse)
        tokens, logprobs, gaps = self._head(hidden, *numbers, _bits(draws), arm, reach, draws.screened)
        return SampledTokens(tokens, logprobs, gaps < NEAR_TIE_GAP)

    def with_margins(self, hidden: torch.Tensor, draws: HeadDraws) -> tuple[SampledTokens, torch.Tensor]:
        """See `TokenHead`."""
        numbers = (draws.rows, draws.temperature, draws.keys, draws.positions, draws.allowed, draws.sparse)
        margins = torch.empty(len(draws.rows), dtype=torch.float32)
        tokens, logprobs, gaps = self._head(hidden, *numbers, _bits(draws), margins=margins)
        return SampledTokens(tokens, logprobs, gaps < NEAR_TIE_GAP), margins.double()

    def reach(self, draws: HeadDraws) -> Reach | None:
        """What each arm would read of the head; None where there is nothing to choose."""
        return self._head.reach(draws.allowed, draws.sparse, _bits(draws))

    @property
    def weight_bytes(self) -> int:
        """The bytes that a draw over all ids reads."""
        return self._head.weight_bytes


def _bits(draws: HeadDraws) -> Bits | None:
    return None if draws.masks is None else draws.masks.bits
