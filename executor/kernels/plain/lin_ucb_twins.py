"""LinUCB in torch: the twins of `triton/lin_ucb_kernels.py`."""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.data.bandits import Bandits


def choose(bandits: Bandits, contexts: torch.Tensor, optimism: torch.Tensor) -> torch.Tensor:
    """As `choose` of `triton/lin_ucb_kernels.py`."""
    means = torch.einsum("rad,rd->ra", bandits.theta, contexts)
    spread = torch.einsum("rd,rade,re->ra", contexts, bandits.inverse, contexts).abs().sqrt()
    scores = means + optimism * spread
    # The first of equal ones; torch's own argmin does not promise that.
    best = scores == scores.min(1, keepdim=True).values
    return best.int().cumsum(1).eq(0).sum(1, dtype=torch.int32)


def learn(bandits: Bandits, contexts: torch.Tensor, arms: torch.Tensor, losses: torch.Tensor) -> None:
    """As `learn` of `triton/lin_ucb_kernels.py`."""
    routers = torch.arange(len(arms), device=arms.device)
    taken = arms.clamp(min=0).long()
    inverse, theta = bandits.inverse[routers, taken], bandits.theta[routers, taken]
    direction = torch.einsum("rde,re->rd", inverse, contexts)
    gain = direction / (1.0 + (direction * contexts).sum(1, keepdim=True))
    gain = torch.where(arms[:, None] >= 0, gain, 0.0)
    error = losses - (theta * contexts).sum(1)
    bandits.inverse[routers, taken] = inverse - gain[:, :, None] * direction[:, None, :]
    bandits.theta[routers, taken] = theta + error[:, None] * gain
