"""What a linear policy does against drift, that is, where the losses of the same context change over time.

Both ways have a dynamic regret that grows with the variation V_T (Cheung, Simchi-Levi and Zhu, 2019; Zhao et al.,
2020), where a policy that keeps everything has one that grows with the number of steps.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from qpdsl.executor.routing.linear import LinUCB, Thompson
from qpdsl.executor.routing.policy import Floats, checked, finite, numbers

Linear = LinUCB | Thompson

# Rounding of what was learned and forgotten again is cleared after so many windows.
_CLEARED = 16
# Of the change test: how far in deviations a mean may move unseen, how much of that is enough in sum, the steps of an
# arm before its residuals are judged, how much of the usual residual is the newest, and the least deviation as a share
# of the usual loss.
_SLACK, _ENOUGH, _SETTLED, _NEWEST, _LEAST = 1.0, 12.0, 8, 0.05, 0.05


def forget(policy: Linear, context: Floats, arm: int, loss: float) -> None:
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

    def __init__(self, policy: Linear) -> None:
        self.arms, self.features = policy.arms, policy.features
        self._policy = policy

    @property
    def theta(self) -> Floats:
        """The estimates [A, d] of the policy within."""
        return self._policy.theta

    def predict(self, context: Floats, arm: int) -> float:
        """The expected loss of an arm."""
        return self._policy.predict(context, arm)

    def choose(self, context: Floats) -> int:
        return self._policy.choose(context)


class SlidingWindow(_Around):
    """A policy that knows the last `window` steps alone."""

    def __init__(self, policy: Linear, window: int) -> None:
        if window < 1:
            raise ValueError(f"a window must hold a step, not {window}")
        super().__init__(policy)
        self._window = window
        self._steps: deque[tuple[Floats, int, float]] = deque()
        self._forgotten = 0

    def learn(self, context: Floats, arm: int, loss: float) -> None:
        self._policy.learn(context, arm, loss)
        self._steps.append((context.copy(), arm, loss))
        if len(self._steps) > self._window:
            forget(self._policy, *self._steps.popleft())
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
        """With `keep` below 1 the newest of the steps count."""
        checked(state, "sliding_window", self.arms, self.features, keep)
        listed = state.get("steps")
        if not isinstance(listed, list) or len(listed) > self._window:
            raise ValueError("the state has no steps, or more than the window")
        steps = numbers(state, "steps", len(listed), self.features + 2) if listed else np.zeros((0, self.features + 2))
        if not all(arm in range(self.arms) for arm in steps[:, -2]):
            raise ValueError("the state has steps of other arms")
        forgotten = int(numbers(state, "forgotten"))
        self._policy.restore(state.get("policy", {}))
        kept = steps[len(steps) - round(keep * len(steps)) :]
        self._steps = deque((step[:-2].copy(), int(step[-2]), float(step[-1])) for step in kept)
        self._forgotten = forgotten
        if keep < 1:
            self._again()

    def reset(self) -> None:
        self._policy.reset()
        self._steps.clear()
        self._forgotten = 0


class Restarts(_Around):
    """A policy that forgets everything after every `every` steps, or when a test says that losses have changed.

    The test is a two-sided CUSUM (Page, 1954) of each arm's residuals, what it cost less what was expected, in units of
    its usual residual. `sensitivity` above 1 restarts sooner. With `every` 0 there is the test alone. A prior is
    forgotten with the rest: where costs have changed it may be wrong as well, and then every arm must be tried.
    """

    def __init__(self, policy: Linear, *, every: int = 0, test: bool = True, sensitivity: float = 1.0) -> None:
        if every < 0 or not sensitivity > 0:
            raise ValueError(f"steps and sensitivity must be positive, not {every}, {sensitivity}")
        if not (every or test):
            raise ValueError("restarts need a schedule or a test")
        super().__init__(policy)
        self._every = every
        self._enough = _ENOUGH / sensitivity if test else np.inf
        self.restarts = 0
        self._clear()

    def learn(self, context: Floats, arm: int, loss: float) -> None:
        residual = finite(loss) - self._policy.predict(context, arm)
        self._steps += 1
        if (self._every and self._steps > self._every) or self._changed(arm, residual, loss):
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
        return max(high, low) > self._enough

    def _clear(self) -> None:
        self._steps = 0
        # For each arm: steps seen, its usual residual, its usual loss, and the sums of both sides.
        self._tests = [[0.0] * 5 for _ in range(self.arms)]

    def state(self) -> dict[str, Any]:
        return {
            "kind": "restarts",
            "arms": self.arms,
            "features": self.features,
            "policy": self._policy.state(),
            "steps": self._steps,
            "restarts": self.restarts,
            "tests": [list(test) for test in self._tests],
        }

    def restore(self, state: dict[str, Any], keep: float = 1.0) -> None:
        """With `keep` below 1 the tests begin anew."""
        checked(state, "restarts", self.arms, self.features, keep)
        tests = numbers(state, "tests", self.arms, 5)
        steps, restarts = int(numbers(state, "steps")), int(numbers(state, "restarts"))
        self._policy.restore(state.get("policy", {}), keep)
        self.restarts = restarts
        self._clear()
        if keep == 1:
            self._steps, self._tests = steps, tests.tolist()

    def reset(self) -> None:
        self._policy.reset()
        self.restarts = 0
        self._clear()
