"""Exponential weights over a grid of thresholds of one feature (LLM-QP, section 4 and appendix A).

An expert is a threshold τ: it suggests one arm where the feature reaches τ, another below. A step takes the suggestion
of an expert that is drawn by weight, and the weights fall by exp(−η ℓ̂), where ℓ̂ estimates each expert's loss: the
loss of the arm that was taken over its probability, ℓ·1[suggested a] / Pr(a) (Exp4: Auer et al., 2002), with regret
O(√(T A log N)).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import numpy as np

from qpdsl.executor.routing.policy import Context, checked, finite, numbers

_THRESHOLDS = [index / 20 for index in range(21)]
# The feature that they are of.
_FEATURE = 1


class Exponential:
    """Weighs thresholds of the second feature.

    `reached`: the arm that an expert suggests where the feature is at least its threshold; `below`: the arm elsewhere.
    Losses are to be in 0..1. η = √(log N / (A t)) at step t, which needs no horizon. ValueError for arms that there are
    not.
    """

    def __init__(self, arms: int, features: int, *, reached: int = 0, below: int = 1, seed: int = 0) -> None:
        if not (0 <= reached < arms and 0 <= below < arms and features > _FEATURE):
            raise ValueError(f"arms {reached} and {below} must be of {arms}, and features at least {_FEATURE + 1}")
        self.arms, self.features = arms, features
        self._reached, self._below = reached, below
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._steps = 0
        self.reset()

    def choose(self, context: Context) -> int:
        drawn = self._random.random() * self._cumulated[-1]
        return self._reached if drawn < self._mass(context) else self._below

    def learn(self, context: Context, arm: int, loss: float) -> None:
        finite(loss)
        if arm not in (self._reached, self._below):
            return
        share = self._mass(context) / self._cumulated[-1]
        loss /= max(share if arm == self._reached else 1.0 - share, 1e-12)
        experts = self._experts(context)
        self._losses[slice(None, experts) if arm == self._reached else slice(experts, None)] += loss
        self._weigh()

    def _experts(self, context: Context) -> int:
        """How many thresholds the feature reaches; they are the first."""
        return bisect_right(_THRESHOLDS, context[_FEATURE])

    def _mass(self, context: Context) -> float:
        """The weight of the experts that suggest the arm `reached`."""
        experts = self._experts(context)
        return float(self._cumulated[experts - 1]) if experts else 0.0

    def _weigh(self) -> None:
        self._steps += 1
        rate = math.sqrt(math.log(len(self._losses) + 1) / (self.arms * self._steps))
        weights = self._losses - self._losses.min()
        weights *= -rate
        np.exp(weights, out=weights)
        self._cumulated = weights.cumsum()

    def state(self) -> dict[str, Any]:
        return {
            "kind": "exponential",
            "arms": self.arms,
            "features": self.features,
            "losses": self._losses.tolist(),
            "cumulated": self._cumulated.tolist(),
            "steps": self._steps,
            "random": self._random.bit_generator.state,
        }

    def restore(self, state: dict[str, Any], keep: float = 1.0) -> None:
        """With `keep` below 1 that share of every expert's loss and of the steps counts."""
        checked(state, "exponential", self.arms, self.features, keep)
        count = len(_THRESHOLDS)
        losses, cumulated = numbers(state, "losses", count), numbers(state, "cumulated", count)
        steps = round(float(numbers(state, "steps")))
        if steps < 0 or not cumulated[-1] > 0:
            raise ValueError("the state has no weights")
        before = self._random.bit_generator.state
        try:
            self._random.bit_generator.state = state["random"]
        except (KeyError, TypeError, ValueError) as error:
            self._random.bit_generator.state = before
            raise ValueError(f"the state has no generator: {error}") from error
        self._losses, self._cumulated, self._steps = losses, cumulated, steps
        if keep < 1:
            self._losses *= keep
            self._steps = max(0, round(keep * steps) - 1)
            self._weigh()

    def reset(self) -> None:
        count = len(_THRESHOLDS)
        self._losses, self._cumulated, self._steps = np.zeros(count), np.arange(1.0, count + 1), 0
