"""LinUCB (Li et al., 2010; LLM-QP, appendix A): the arm that may be the best."""

from __future__ import annotations

import numpy as np

from qpdsl.executor.routing.policy import Floats
from qpdsl.executor.routing.ridge import Ridge


class LinUCB(Ridge):
    """The arm with the least xᵀθ − β√(xᵀV⁻¹x). Ties go to the first.

    Losses are to be small, so what an arm may cost *at best* is the optimism that makes a policy try it. With `upper`
    it is xᵀθ + β√(xᵀV⁻¹x), as LLM-QP prints it: that avoids arms of which little is known, and stays with the first
    that it took unless β is tiny.
    """

    def __init__(
        self,
        arms: int,
        features: int,
        *,
        beta: float = 0.05,
        upper: bool = False,
        alpha: float = 1.0,
        prior: Floats | None = None,
    ) -> None:
        if not 0 <= beta < np.inf:
            raise ValueError(f"beta must be at least 0, not {beta}")
        super().__init__(arms, features, alpha=alpha, prior=prior)
        self.kind = "lin_ucb_upper" if upper else "lin_ucb"
        self._optimism = beta if upper else -beta

    def choose(self, context: Floats) -> int:
        means, spread = self.scores(context)
        spread *= self._optimism
        spread += means
        return int(spread.argmin())
