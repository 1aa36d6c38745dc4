"""What a linear policy does against drift, that is, where the losses of the same context change over time.

Both ways have a dynamic regret that grows with the variation V_T (Cheung, Simchi-Levi and Zhu, 2019; Zhao et al.,
2020), where a policy that keeps everything has one that grows with the number of steps.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

from qpdsl.executor.routing.linear import LinUCB, Thompson
from qpdsl.executor.routing.policy import Context, Floats, checked, finite, numbers

Linear = LinUCB | Thompson

# Rounding of what was learned and forgotten again is cleared after so many windows.
_CLEARED = 16
# Of the change test: how far in deviations a mean may move unseen, how much of that is enough in sum, the steps of an
# arm before its residuals are judged, how much of the usual residual is the newest, and the least deviation as a share
# of the usual loss.
_SLACK, _ENOUGH, _SETTLED, _NEWEST, _LEAST = 1.0, 12.0, 8, 0.05, 0.05


def forget(policy: Linear, context: Context, arm: int, loss: float) -> None:
    """Undoes a `learn`, but for rounding."""
    inverse, theta = policy.inverse[arm], policy.theta[arm]
    error = loss - theta @ context
    direction = inverse @ context
    gain = direction / (1.0 - direction @ context)
    inverse += gain[:, None] * direction
    theta -= error * gain
    policy.counts[arm] -= 1


class _Around:
    """A linear policy within another, which says what it forgets."""

    def __init__(self, policy: Linear | SlidingWindow) -> None:
        self.arms: int = policy.arms
        self.features: int = policy.features
        self._policy = policy

    @property
    def theta(self) -> Floats:
        """The estimates [A, d] of the policy within."""
        return self._policy.theta

    def predict(self, context: Context, arm: int) -> float:
        """The expected loss of an arm."""
        return self._policy.predict(context, arm)

    def choose(self, context: Context) -> int:
        return self._policy.choose(context)


# What was learned longer ago counts no more.
WINDOW = 1024


def drifting(policy: Linear) -> Restarts:
    """A linear policy where costs change: it knows a window of steps, and restarts when they seem to have changed.

    The test sees only the arm that is taken; that another has become cheaper is found when the window forgets it.
    """
    return Restarts(SlidingWindow(policy, WINDOW))


class SlidingWindow(_Around):
    """A policy that knows the last `window` steps alone."""

    def __init__(self, policy: Linear, window: int) -> None:
        super().__init__(policy)
        self._linear, self._window = policy, window
        self._steps: deque[tuple[Floats, int, float]] = deque()
        self._forgotten = 0

    def learn(self, context: Context, arm: int, loss: float) -> None:
        self._policy.learn(context, arm, loss)
        self._steps.append((np.array(context, dtype=np.float64), arm, loss))
        if len(self._steps) > self._window:
            forget(self._linear, *self._steps.popleft())
            self._forgotten += 1
            if self._forgotten >= _CLEARED * self._window:
                self._again()

    def _again(self) -> None:
        self._policy.reset()
        for step in self._steps:
            self._policy.learn(*step)
        self._forgotten = 0

    def state(self) -> dict[str, Any]:
        """That of the policy within, and the steps of the window, oldest first."""
        steps = [[*map(float, context), arm, loss] for context, arm, loss in self._steps]
        return {
            "kind": "sliding_window",
            "arms": self.arms,
            "features": self.features,
            "policy": self._policy.state(),
            "steps": steps,
            "forgotten": self._forgotten,
        }

    def restore(self, state: dict[str, Any], keep: float = 1.0) -> None:
        """With `keep` below 1 the newest of the steps of each arm count."""
        checked(state, "sliding_window", self.arms, self.features, keep)
        listed = state.get("steps")
        if not isinstance(listed, list) or len(listed) > self._window:
            raise ValueError("the state has no steps, or more than the window")
        steps = numbers(state, "steps", len(listed), self.features + 2) if listed else np.zeros((0, self.features + 2))
        if not all(arm in range(self.arms) for arm in steps[:, -2]):
            raise ValueError("the state has steps of other arms")
        forgotten = int(numbers(state, "forgotten"))
        self._policy.restore(state.get("policy", {}))
        left = [math.ceil(keep * (steps[:, -2] == arm).sum()) for arm in range(self.arms)]
        newest: list[Floats] = []
        for step in steps[::-1]:
            left[int(step[-2])] -= 1
            if left[int(step[-2])] >= 0:
                newest.append(step)
        kept = newest[::-1]
        self._steps = deque((step[:-2].copy(), int(step[-2]), float(step[-1])) for step in kept)
        self._forgotten = forgotten
        if keep < 1:
            self._again()

    def reset(self) -> None:
        self._policy.reset()
        self._steps.clear()
        self._forgotten = 0


class Restarts(_Around):
    """A policy that forgets everything when a test says that losses have changed. `restarts` counts how often.

    The test is a two-sided CUSUM (Page, 1954) of each arm's residuals, what it cost less what was expected, in units of
    its usual residual. A prior is forgotten with the rest: where costs have changed it may be wrong as well, and then
    every arm must be tried.
    """

    def __init__(self, policy: Linear | SlidingWindow) -> None:
        super().__init__(policy)
        self.restarts = 0
        self._clear()

    def learn(self, context: Context, arm: int, loss: float) -> None:
        residual = finite(loss) - self._policy.predict(context, arm)
        if self._changed(arm, residual, loss):
            self._policy.reset()
            self._policy.theta[:] = 0.0
            self.restarts += 1
            self._clear()
        self._policy.learn(context, arm, loss)

    def _changed(self, arm: int, residual: float, loss: float) -> bool:
        """Adds a residual to an arm's sums; whether one of them is enough."""
        test = self._tests[arm]
        seen, usual, size, high, low = test
        if seen >= _SETTLED:
            # 1.25 mean absolute residuals are a deviation of a normal distribution.
            moved = residual / max(1.25 * usual, _LEAST * size, 1e-12)
            high, low = max(0.0, high + moved - _SLACK), max(0.0, low - moved - _SLACK)
        newest = max(_NEWEST, 1.0 / (seen + 1.0))
        # A residual that stands out must not make itself usual.
        bounded = min(abs(residual), 4.0 * usual) if seen >= _SETTLED and usual else abs(residual)
        test[:] = seen + 1, usual + newest * (bounded - usual), size + newest * (abs(loss) - size), high, low
        return max(high, low) > _ENOUGH

    def _clear(self) -> None:
        # For each arm: steps seen, its usual residual, its usual loss, and the sums of both sides.
        self._tests = [[0.0] * 5 for _ in range(self.arms)]

    def state(self) -> dict[str, Any]:
        return {
            "kind": "restarts",
            "arms": self.arms,
            "features": self.features,
            "policy": self._policy.state(),
            "restarts": self.restarts,
            "tests": [list(test) for test in self._tests],
        }

    def restore(self, state: dict[str, Any], keep: float = 1.0) -> None:
        """With `keep` below 1 the tests begin anew."""
        checked(state, "restarts", self.arms, self.features, keep)
        tests = numbers(state, "tests", self.arms, 5)
        restarts = int(numbers(state, "restarts"))
        self._policy.restore(state.get("policy", {}), keep)
        self.restarts = restarts
        self._clear()
        if keep == 1:
            self._tests = tests.tolist()

    def reset(self) -> None:
        self._policy.reset()
        self.restarts = 0
        self._clear()
