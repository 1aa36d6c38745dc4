"""Always the same arm: what a policy is compared with, and what a plan without a router does."""

from __future__ import annotations

from typing import Any

from qpdsl.executor.routing.policy import Floats, checked


class Fixed:
    """Takes `arm` and learns nothing. ValueError for an arm that there is not."""

    def __init__(self, arms: int, features: int, *, arm: int = 0) -> None:
        if not 0 <= arm < arms:
            raise ValueError(f"there is no arm {arm} of {arms}")
        self.arms, self.features, self._arm = arms, features, arm

    def choose(self, context: Floats) -> int:
        return self._arm

    def learn(self, context: Floats, arm: int, loss: float) -> None:
        pass

    def learn_all(self, context: Floats, losses: Floats) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {"kind": "fixed", "arms": self.arms, "features": self.features}

    def restore(self, state: dict[str, Any], keep: float = 1.0) -> None:
        checked(state, "fixed", self.arms, self.features, keep)

    def reset(self) -> None:
        pass
