"""Policies by name: those that runs use, and variants that are only measured."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.routing.drift import Restarts, SlidingWindow
from qpdsl.executor.routing.linear import LinUCB, Thompson
from qpdsl.executor.routing.policy import Fixed, Floats, Policy, finite
from qpdsl.executor.routing.thresholds import Exponential

POLICIES = ("lin_ucb", "lin_ucb_upper", "thompson", "exponential", "fixed")
"""The names, the default first."""


class LinUCBUpper(LinUCB):
    """The arm with the least xᵀθ + β√(xᵀV⁻¹x), as LLM-QP prints it.

    That avoids arms of which little is known, and stays with the first that it took unless β is tiny.
    """

    kind = "lin_ucb_upper"

    def __init__(self, arms: int, features: int, **options: Any) -> None:
        super().__init__(arms, features, **options)
        self._optimism = -self._optimism


class FullInformation(Exponential):
    """`Exponential` that can be told the losses of all arms: ℓ̂ = ℓ (Hedge: Freund and Schapire, 1997).

    Its regret is O(√(T log N)). `greedy`: the suggestion of the expert with the largest weight, nothing drawn, and its
    loss as it is. That explores nothing, so it is sound with full information alone.
    """

    def __init__(self, arms: int, features: int, *, greedy: bool = False, **options: Any) -> None:
        super().__init__(arms, features, **options)
        self._greedy = greedy

    def choose(self, context: Floats) -> int:
        if not self._greedy:
            return super().choose(context)
        suggests = context[self._feature] >= self._thresholds[int(self._losses.argmin())]
        return self._reached if suggests else self._below

    def learn(self, context: Floats, arm: int, loss: float) -> None:
        if not self._greedy:
            super().learn(context, arm, loss)
        elif arm in (self._reached, self._below):
            losses = np.zeros(self.arms)
            losses[arm] = loss
            self.learn_all(context, losses)

    def learn_all(self, context: Floats, losses: Floats) -> None:
        """What every arm [A] costs in this step."""
        reached, below = finite(float(losses[self._reached])), finite(float(losses[self._below]))
        experts = self._experts(context)
        self._losses[:experts] += reached
        self._losses[experts:] += below
        self._weigh()


_CLASSES: dict[str, type[Policy]] = {
    "lin_ucb": LinUCB,
    "lin_ucb_upper": LinUCBUpper,
    "thompson": Thompson,
    "exponential": FullInformation,
    "fixed": Fixed,
}


def make_policy(
    name: str,
    arms: int,
    features: int,
    *,
    window: int | None = None,
    restart_every: int | None = None,
    restart_on_change: bool = False,
    **options: Any,
) -> Policy:
    """A policy by one of `POLICIES`, with the options of its class.

    Linear ones may know only the last `window` steps, or restart: every so many steps, when losses change, or both.
    ValueError for names, sizes and options that there are not, or that do not go together.
    """
    if name not in _CLASSES:
        raise ValueError(f"there is no policy {name}; there are {', '.join(POLICIES)}")
    try:
        made: Any = _CLASSES[name](arms, features, **options)
    except TypeError as error:
        raise ValueError(f"the policy {name} does not take these options: {error}") from error
    if window is None and restart_every is None and not restart_on_change:
        policy: Policy = made
        return policy
    if not isinstance(made, LinUCB | Thompson):
        raise ValueError(f"the policy {name} has no window and no restarts; lin_ucb and thompson have")
    if window is None:
        return Restarts(made, every=restart_every or 0, test=restart_on_change)
    if restart_every is not None or restart_on_change:
        raise ValueError("a policy has a window or restarts, not both")
    return SlidingWindow(made, window)
