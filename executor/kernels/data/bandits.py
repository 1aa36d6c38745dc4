"""What linear policies of many routers know, on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Bandits:
    """R routers of A arms and d features each, as `executor/routing/ridge.py` has one.

    inverse: float64 [R, A, d, d], V⁻¹ of each arm
    theta:   float64 [R, A, d], the estimates

    Both are contiguous, and are changed in place.
    """

    inverse: torch.Tensor
    theta: torch.Tensor

    @classmethod
    def from_states(cls, states: Sequence[Mapping[str, Any]], device: torch.device | str = "cpu") -> Bandits:
        """The routers whose `state()` these are: policies of one size, LinUCB's or others that are linear."""
        inverse, theta = (
            torch.tensor([state[name] for state in states], dtype=torch.float64, device=device)
            for name in ("inverse", "theta")
        )
        return cls(inverse, theta)

    def to_states(self, states: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """These states with what was learned here since. Waits for the device."""
        inverse, theta = self.inverse.tolist(), self.theta.tolist()
        return [
            {**state, "inverse": one, "theta": other} for state, one, other in zip(states, inverse, theta, strict=True)
        ]
