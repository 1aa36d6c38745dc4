"""Each arm's loss as a linear function of the context, by ridge regression that is updated step by step.

An arm has V = αI + Σ x xᵀ and b = αθ₀ + Σ x ℓ over its steps, so its estimate is θ = V⁻¹ b. Neither V nor b is kept:
V⁻¹ and θ are updated (Sherman and Morrison, 1950), in O(d²).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qpdsl.executor.routing.policy import Floats, checked, finite, numbers


class Ridge:
    """The base of the linear policies: they differ in `choose` alone.

    `alpha`: what θ₀ counts, in steps for each direction of the context. `prior` [A, d]: θ₀, zeros where it is not
    given. ValueError for sizes and options that make no sense.
    """

    kind = "ridge"

    def __init__(self, arms: int, features: int, *, alpha: float = 1.0, prior: Floats | None = None) -> None:
        if arms < 1 or features < 1 or not alpha > 0:
            raise ValueError(f"a policy needs arms, features and an alpha above 0, not {arms}, {features}, {alpha}")
        self.arms, self.features, self._alpha = arms, features, alpha
        self._prior = np.zeros((arms, features)) if prior is None else np.array(prior, dtype=np.float64)
        if self._prior.shape != (arms, features) or not np.isfinite(self._prior).all():
            raise ValueError(f"a prior must be finite, of the shape {(arms, features)}")
        # V⁻¹ and below it θ, so that one product with a context serves both.
        self._known = np.empty((arms, features + 1, features))
        self._flat = self._known.reshape(-1, features)
        self._inverse, self._theta = self._known[:, :features], self._known[:, features]
        self.counts = [0] * arms
        self.reset()

    @property
    def theta(self) -> Floats:
        """The estimates [A, d]; a view, which `learn` changes."""
        return self._theta

    def scores(self, context: Floats) -> tuple[Floats, Floats]:
        """Expected losses xᵀθ [A], and their uncertainty √(xᵀV⁻¹x) [A]."""
        products = (self._flat @ context).reshape(self.arms, -1)
        spread = products[:, :-1] @ context
        # Rounding may leave a tiny negative number.
        np.abs(spread, out=spread)
        return products[:, -1], np.sqrt(spread, out=spread)

    def predict(self, context: Floats, arm: int) -> float:
        """The expected loss of an arm."""
        return float(self._theta[arm] @ context)

    def learn(self, context: Floats, arm: int, loss: float) -> None:
        inverse, theta = self._inverse[arm], self._theta[arm]
        error = finite(loss) - theta @ context
        direction = inverse @ context
        gain = direction / (1.0 + direction @ context)
        inverse -= gain[:, None] * direction
        theta += error * gain
        self.counts[arm] += 1

    def forget(self, context: Floats, arm: int, loss: float) -> None:
        """Undoes a `learn`, but for rounding."""
        inverse, theta = self._inverse[arm], self._theta[arm]
        error = loss - theta @ context
        direction = inverse @ context
        gain = direction / (1.0 - direction @ context)
        inverse += gain[:, None] * direction
        theta -= error * gain
        self.counts[arm] -= 1

    def learn_all(self, context: Floats, losses: Floats) -> None:
        for arm, loss in enumerate(losses):
            self.learn(context, arm, float(loss))

    def state(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "arms": self.arms,
            "features": self.features,
            "inverse": self._inverse.tolist(),
            "theta": self._theta.tolist(),
            "counts": list(self.counts),
        }

    def restore(self, state: dict[str, Any], keep: float = 1.0) -> None:
        """With `keep` below 1 that share of V − αI and of b − αθ₀ counts."""
        checked(state, self.kind, self.arms, self.features, keep)
        inverse = numbers(state, "inverse", self.arms, self.features, self.features)
        theta = numbers(state, "theta", self.arms, self.features)
        counts = numbers(state, "counts", self.arms)
        if not (np.linalg.eigvalsh(inverse) > 0).all():
            raise ValueError("inverse of the state is not that of a regression")
        if keep < 1:
            base = self._alpha * np.eye(self.features)
            precision = np.linalg.inv(inverse).astype(np.float64)
            moment = (precision @ theta[:, :, None])[:, :, 0]
            first = self._alpha * self._prior
            inverse = np.linalg.inv(base + keep * (precision - base)).astype(np.float64)
            theta = (inverse @ (first + keep * (moment - first))[:, :, None])[:, :, 0]
        self._inverse[:], self._theta[:] = inverse, theta
        self.counts = [round(keep * count) for count in counts]

    def reset(self, prior: bool = True) -> None:
        """Without `prior` that is forgotten too, until the next reset: all arms are expected to cost nothing."""
        self._inverse[:], self._theta[:] = np.eye(self.features) / self._alpha, self._prior if prior else 0.0
        self.counts = [0] * self.arms
