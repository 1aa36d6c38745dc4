"""Linear policies: each arm's loss as a linear function of the context, by ridge regression updated step by step.

An arm has V = αI + Σ x xᵀ and b = αθ₀ + Σ x ℓ over its steps, so its estimate is θ = V⁻¹ b. Neither V nor b is kept:
V⁻¹ and θ are updated (Sherman and Morrison, 1950), in O(d²).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qpdsl.executor.routing.policy import Context, Floats, checked, finite, numbers


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

    @property
    def inverse(self) -> Floats:
        """V⁻¹ of each arm [A, d, d]; a view, which `learn` changes."""
        return self._inverse

    def scores(self, context: Context) -> tuple[Floats, Floats]:
        """Expected losses xᵀθ [A], and their uncertainty √(xᵀV⁻¹x) [A]."""
        products = (self._flat @ context).reshape(self.arms, -1)
        spread = products[:, :-1] @ context
        # Rounding may leave a tiny negative number.
        np.abs(spread, out=spread)
        return products[:, -1], np.sqrt(spread, out=spread)

    def predict(self, context: Context, arm: int) -> float:
        """The expected loss of an arm."""
        return float(self._theta[arm] @ context)

    def learn(self, context: Context, arm: int, loss: float) -> None:
        inverse, theta = self._inverse[arm], self._theta[arm]
        error = finite(loss) - theta @ context
        direction = inverse @ context
        gain = direction / (1.0 + direction @ context)
        inverse -= gain[:, None] * direction
        theta += error * gain
        self.counts[arm] += 1

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

    def reset(self) -> None:
        self._inverse[:], self._theta[:] = np.eye(self.features) / self._alpha, self._prior
        self.counts = [0] * self.arms


class LinUCB(Ridge):
    """The arm with the least xᵀθ − β√(xᵀV⁻¹x) (Li et al., 2010; LLM-QP, appendix A). Ties go to the first.

    Losses are to be small, so what an arm may cost *at best* is the optimism that makes a policy try it.
    """

    kind = "lin_ucb"

    def __init__(
        self, arms: int, features: int, *, beta: float = 0.05, alpha: float = 1.0, prior: Floats | None = None
    ) -> None:
        if not 0 <= beta < np.inf:
            raise ValueError(f"beta must be at least 0, not {beta}")
        super().__init__(arms, features, alpha=alpha, prior=prior)
        self._optimism = -beta

    def choose(self, context: Context) -> int:
        means, spread = self.scores(context)
        spread *= self._optimism
        spread += means
        return int(spread.argmin())


class Thompson(Ridge):
    """Linear Thompson sampling (Agrawal and Goyal, 2013): the arm with the least xᵀθ̃, where θ̃ ~ N(θ, β² V⁻¹).

    xᵀθ̃ is normal with mean xᵀθ and deviation β√(xᵀV⁻¹x), and the arms are independent, so a number is drawn for each
    arm and no vector.
    """

    kind = "thompson"

    def __init__(
        self,
        arms: int,
        features: int,
        *,
        beta: float = 0.05,
        seed: int = 0,
        alpha: float = 1.0,
        prior: Floats | None = None,
    ) -> None:
        if not 0 <= beta < np.inf:
            raise ValueError(f"beta must be at least 0, not {beta}")
        self._beta = beta
        self._random = np.random.Generator(np.random.PCG64(seed))
        super().__init__(arms, features, alpha=alpha, prior=prior)

    def choose(self, context: Context) -> int:
        means, spread = self.scores(context)
        spread *= self._random.standard_normal(self.arms)
        spread *= self._beta
        spread += means
        return int(spread.argmin())

    def state(self) -> dict[str, Any]:
        return {**super().state(), "random": self._random.bit_generator.state}

    def restore(self, state: dict[str, Any], keep: float = 1.0) -> None:
        before = self._random.bit_generator.state
        try:
            self._random.bit_generator.state = state["random"]
            super().restore(state, keep)
        except (KeyError, TypeError, ValueError) as error:
            self._random.bit_generator.state = before
            raise ValueError(f"the state is not one of Thompson sampling: {error}") from error
