"""Linear Thompson sampling (Agrawal and Goyal, 2013): the arm that is the best of one draw from what is believed."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpdsl.executor.routing.policy import Floats
from qpdsl.executor.routing.ridge import Ridge


class Thompson(Ridge):
    """The arm with the least xᵀθ̃, where θ̃ ~ N(θ, β² V⁻¹) for each arm.

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

    def choose(self, context: Floats) -> int:
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
