"""Who decides what a plan leaves open, where that depends on what only the run knows.

No token depends on how a step's head is computed. Whether a draw tries its early exit can change its token, so that is
decided by what a router knew when the run began and by the sample's own past.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

# "dense": every draw over all ids. "rows": each draw that may be sparse over the ids that its own mask allows, the
# others over all. "union": those that may be sparse over one list, of the ids that any of their masks allows.
Arm = Literal["dense", "rows", "union"]
ARMS: tuple[Arm, ...] = get_args(Arm)
# Contextual bandits that learn from the seconds of earlier steps, exponential weights over thresholds of the allowed
# share, or one arm for all steps.
RouterPolicy = Literal["lin_ucb", "thompson", "exponential", "fixed"]
ROUTER_POLICIES: tuple[RouterPolicy, ...] = get_args(RouterPolicy)
# What a draw with an early exit does: "exit" tries it, and where its token does not stand draws from the last layer;
# "rerank" chooses there among the exit's best ids alone; "full" has all layers draw and leaves the exit's head out.
ExitArm = Literal["exit", "rerank", "full"]
EXIT_ARMS: tuple[ExitArm, ...] = get_args(ExitArm)
# What says that nothing is routed.
NO_ROUTER = "none"


@dataclass(frozen=True, slots=True)
class Routing:
    """A policy, and the arms between which it decides once a step. Requests with equal routings share what is learned.

    The loss of a step is `latency` · its normalised seconds + (1 − `latency`) · its quality loss, which is 0 for these
    arms: they draw the same tokens. `seed`: of a policy that draws.
    """

    policy: RouterPolicy = "lin_ucb"
    arms: tuple[Arm, ...] = ARMS
    latency: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.arms or len(set(self.arms)) != len(self.arms) or not set(self.arms) <= set(ARMS):
            raise ValueError(f"arms are some of {', '.join(ARMS)}, each once")
        if self.policy not in ROUTER_POLICIES:
            raise ValueError(f"a policy is one of {', '.join(ROUTER_POLICIES)}, not {self.policy}")
        if self.policy == "fixed" and len(self.arms) != 1:
            raise ValueError("a fixed policy has one arm")
        if not 0 <= self.latency <= 1:
            raise ValueError(f"the weight of latency is in [0, 1], not {self.latency}")

    @classmethod
    def named(cls, text: str, latency: float = 0.5) -> Routing | None:
        """The routing that a user names: a policy or `fixed:ARM`. None where it routes no heads. Raises ValueError."""
        if text == NO_ROUTER or text in _EXIT_ROUTERS:
            return None
        policy, _, arm = text.partition(":")
        for known in ROUTER_POLICIES:
            if known == policy and (known == "fixed") == bool(arm):
                arms = tuple(one for one in ARMS if not arm or one == arm)
                if arms:
                    return cls(known, arms, latency)
        raise ValueError(f"a router is `none`, `lin_ucb`, `thompson`, `exponential` or `fixed:ARM`, not `{text}`")

    def __str__(self) -> str:
        return self.policy if self.policy != "fixed" else f"fixed:{self.arms[0]}"


@dataclass(frozen=True, slots=True)
class ExitRouting:
    """Who decides which draws try their early exit: a linear policy, or `fixed`, always the same arm.

    The loss of a draw is `latency` · its seconds over those of a draw that leaves the exit out + (1 − `latency`) · the
    probability that its token is not the full model's.
    """

    policy: Literal["lin_ucb", "thompson", "fixed"] = "lin_ucb"
    fixed: ExitArm | None = None
    latency: float = 0.5

    def __post_init__(self) -> None:
        if (self.policy == "fixed") != (self.fixed is not None):
            raise ValueError("a fixed policy has one arm, and no other has")
        if not 0 <= self.latency <= 1:
            raise ValueError(f"the weight of latency is in [0, 1], not {self.latency}")

    @classmethod
    def named(cls, text: str) -> ExitRouting | None:
        """The routing that a user names: a policy or `fixed:ARM`. None where it routes no exits."""
        return _EXIT_ROUTERS.get(text) or {"lin_ucb": cls(), "thompson": cls("thompson")}.get(text)

    def __str__(self) -> str:
        return self.policy if self.fixed is None else f"fixed:{self.fixed}"


_EXIT_ROUTERS = {f"fixed:{arm}": ExitRouting("fixed", arm) for arm in EXIT_ARMS}
