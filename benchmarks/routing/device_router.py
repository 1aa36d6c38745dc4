"""LinUCB of `executor/routing` on the device of a step: Triton kernels, or their torch twins. Nothing waits for it.

    arms = choose(bandits, contexts, optimism)
    learn(bandits, contexts, arms, losses)

A step's losses may be given while later steps run: what is learned counts from the next `choose` on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qpdsl.executor.kernels.paged_attention import on_device


@dataclass(frozen=True, slots=True)
class Bandits:
    """R routers of A arms and d features each, as `Ridge` of `executor/routing/linear.py` is one.

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


def choose(bandits: Bandits, contexts: torch.Tensor, optimism: torch.Tensor) -> torch.Tensor:
    """The arms int32 [R] of R independent routers for `contexts` float64 [R, d], contiguous; of equal ones the first.

    `optimism` float64 [1]: what the uncertainty √(xᵀV⁻¹x) counts: −β, or β for LinUCB as LLM-QP prints it.
    """
    if not on_device(contexts):
        return plain_choose(bandits, contexts, optimism)
    from benchmarks.routing import lin_ucb_kernels

    return lin_ucb_kernels.choose(bandits, contexts, optimism)


def learn(bandits: Bandits, contexts: torch.Tensor, arms: torch.Tensor, losses: torch.Tensor) -> None:
    """Learns `losses` float64 [R] of the `arms` int32 [R] that were taken; below 0 a router learns nothing."""
    if not on_device(contexts):
        plain_learn(bandits, contexts, arms, losses)
        return
    from benchmarks.routing import lin_ucb_kernels

    lin_ucb_kernels.learn(bandits, contexts, arms, losses)


def plain_choose(bandits: Bandits, contexts: torch.Tensor, optimism: torch.Tensor) -> torch.Tensor:
    """The twin of `choose` of `lin_ucb_kernels.py`."""
    means = torch.einsum("rad,rd->ra", bandits.theta, contexts)
    spread = torch.einsum("rd,rade,re->ra", contexts, bandits.inverse, contexts).abs().sqrt()
    scores = means + optimism * spread
    # The first of equal ones; torch's own argmin does not promise that.
    best = scores == scores.min(1, keepdim=True).values
    return best.int().cumsum(1).eq(0).sum(1, dtype=torch.int32)


def plain_learn(bandits: Bandits, contexts: torch.Tensor, arms: torch.Tensor, losses: torch.Tensor) -> None:
    """The twin of `learn` of `lin_ucb_kernels.py`."""
    routers = torch.arange(len(arms), device=arms.device)
    taken = arms.clamp(min=0).long()
    inverse, theta = bandits.inverse[routers, taken], bandits.theta[routers, taken]
    direction = torch.einsum("rde,re->rd", inverse, contexts)
    gain = direction / (1.0 + (direction * contexts).sum(1, keepdim=True))
    gain = torch.where(arms[:, None] >= 0, gain, 0.0)
    error = losses - (theta * contexts).sum(1)
    bandits.inverse[routers, taken] = inverse - gain[:, :, None] * direction[:, None, :]
    bandits.theta[routers, taken] = theta + error[:, None] * gain
