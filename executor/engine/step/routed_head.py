"""The compiled head with a policy that says, once a step, over which ids it is computed (LLM-QP, section 4).

No token depends on it. What a step shows is told by what each arm would read of the head, so a policy learns what
reading costs here beside what does not depend on it: lists of ids, groups of draws, the device.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from qpdsl.executor.engine.step.compiled_head import CompiledHead
from qpdsl.executor.engine.step.sampler import SampledTokens
from qpdsl.executor.engine.step.token_head import HeadDraws
from qpdsl.executor.requests.routing import Arm, Routing
from qpdsl.executor.routing.policies import make_policy
from qpdsl.executor.routing.policy import Floats, Policy
from qpdsl.executor.routing.route_trace import RouteTrace

if TYPE_CHECKING:
    from qpdsl.executor.kernels.llvm.head_plan import Reach

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


def context_of(reach: Reach) -> Floats:
    """What a step shows, float64 [F], by `FEATURES`: ‖x‖ ≤ 1, but where the draws' own lists read more than all ids.

    What it costs whatever it reads, and what the draws' own lists, one list for all, and all ids read; all of it as
    shares of the last. And the number of lists. (`Contexts`, with K, sees a head of single ids; this one reads panels.)
    """
    panels, lists = len(reach.union), min(len(reach.lengths) * _LISTS, reach.dense)
    context: Floats = np.array((panels, reach.own, reach.shared, reach.dense, lists)) * (_UNIT / reach.dense)
    return context


def loss_of(seconds: float, reach: Reach, panel_bytes: float, latency: float) -> float:
    """Of a step that took so long: its seconds over those of a nominal dense one, times their weight."""
    return latency * min(seconds / (reach.dense * panel_bytes / _NOMINAL + _FIXED), _LONGEST)


def policy_of(routing: Routing) -> Policy:
    """A policy that has learned nothing yet. Linear ones begin with the belief that reading costs, and little."""
    arms, sizes = routing.arms, (len(routing.arms), len(FEATURES))
    if routing.policy == "fixed":
        return make_policy("fixed", *sizes)
    if routing.policy == "exponential":
        few: Arm = "rows" if "rows" in arms else "union"
        reached, below = (arms.index(arm) if arm in arms else 0 for arm in ("dense", few))
        return make_policy("exponential", *sizes, reached=reached, below=below, seed=routing.seed)
    reads = {"dense": (0, 0, 0, 1, 0), "rows": (0, 1, 0, 0, 0), "union": (0, 0, 1, 0, 0)}
    prior = np.array([reads[arm] for arm in arms]) * (routing.latency / _UNIT / _FASTER)
    options: dict[str, Any] = {"prior": prior, "alpha": _BELIEF, "beta": _HOPE}
    if routing.policy == "thompson":
        options["seed"] = routing.seed
    return make_policy(routing.policy, *sizes, **options)


@dataclass(slots=True)
class RecordedStep:
    """A step with what every arm took: the context, the arm that the policy took by its number, seconds, and losses."""

    context: Floats
    arm: int
    seconds: tuple[float, ...]
    losses: tuple[float, ...]


@dataclass(slots=True)
class HeadRouter:
    """A policy at work. `steps` counts those of each arm, `seconds` are theirs, `spent` are the policy's own.

    `recorded` holds every step in which all arms ran, where they are recorded, and `regret` the seconds that the best
    arm of each of these would have saved.
    """

    routing: Routing
    policy: Policy
    steps: Counter[Arm] = field(default_factory=Counter)
    seconds: float = 0.0
    spent: float = 0.0
    recorded: list[RecordedStep] = field(default_factory=list)
    regret: float = 0.0

    @classmethod
    def of(cls, routing: Routing) -> HeadRouter:
        return cls(routing, policy_of(routing))

    @property
    def recorded_seconds(self) -> Floats:
        """What every arm took in each recorded step, float64 [T, A]."""
        return np.array([step.seconds for step in self.recorded]).reshape(-1, len(self.routing.arms))

    def trace(self) -> RouteTrace:
        """The recorded steps."""
        steps = self.recorded
        return RouteTrace(
            self.routing.arms,
            FEATURES,
            np.array([step.context for step in steps]).reshape(-1, len(FEATURES)),
            np.array([step.losses for step in steps]).reshape(-1, len(self.routing.arms)),
            np.array([step.arm for step in steps], dtype=np.int64),
        )

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

    `arm`: the one that the last call took, None where nobody chose. With `record` every arm computes such a step so
    many times, to know what each takes at the least, by `clock`; the draws are those of the arm that was chosen.
    """

    def __init__(self, head: CompiledHead) -> None:
        self._head = head
        self.record = 0
        self.clock = time.perf_counter
        self.routers: dict[Routing, HeadRouter] = {}
        self.arm: Arm | None = None

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
        self.arm = None
        reach = None if draws.route is None else self._head.reach(draws)
        if draws.route is None or reach is None:
            return self._head(hidden, draws)
        router = self.router(draws.route)
        policy, arms = router.policy, router.routing.arms
        started = time.perf_counter()
        context = context_of(reach)
        chosen = policy.choose(context)
        begun = time.perf_counter()
        if self.record:
            drawn, taken = self._recorded(hidden, draws, router)
        else:
            drawn, taken = {chosen: self._head(hidden, draws, arms[chosen], reach)}, {}
        ended = time.perf_counter()
        seconds = taken.get(chosen, ended - begun)
        panel_bytes = self._head.weight_bytes / len(reach.union)
        policy.learn(context, chosen, loss_of(seconds, reach, panel_bytes, router.routing.latency))
        router.spent += begun - started + time.perf_counter() - ended
        router.seconds += seconds
        router.steps[arms[chosen]] += 1
        self.arm = arms[chosen]
        if taken:
            each = tuple(taken[arm] for arm in range(len(arms)))
            losses = tuple(loss_of(one, reach, panel_bytes, router.routing.latency) for one in each)
            router.recorded.append(RecordedStep(context, chosen, each, losses))
            router.regret += seconds - min(each)
        return drawn[chosen]

    def _recorded(
        self, hidden: torch.Tensor, draws: HeadDraws, router: HeadRouter
    ) -> tuple[dict[int, SampledTokens], dict[int, float]]:
        """What every arm draws, and the least seconds that it took, by its number. Another one is first each time."""
        arms = router.routing.arms
        drawn: dict[int, SampledTokens] = {}
        taken = dict.fromkeys(range(len(arms)), math.inf)
        for attempt in range(self.record):
            for place in range(len(arms))[:: 1 if attempt % 2 == 0 else -1]:
                arm = (place + len(router.recorded)) % len(arms)
                start = self.clock()
                drawn[arm] = self._head(hidden, draws, arms[arm], self._head.reach(draws))
                taken[arm] = min(taken[arm], self.clock() - start)
        return drawn, taken
